/* The few things of a browser that `chart.js` asks for, so that Node can draw a chart; prints the texts of the picture as JSON. */
class Node {
  constructor(name) {
    Object.assign(this, { name, children: [], attributes: {}, dataset: {}, style: {}, textContent: "", className: "", isConnected: true, clientWidth: 900, offsetWidth: 100 });
  }
  append(...nodes) { this.children.push(...nodes); }
  replaceChildren(...nodes) { this.children = nodes; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener() {}
  getBoundingClientRect() { return { left: 0, top: 0, width: 900, height: 400 }; }
}
globalThis.document = { createElement: (name) => new Node(name), createElementNS: (_, name) => new Node(name) };
globalThis.ResizeObserver = class { observe() {} };
globalThis.matchMedia = () => ({ matches: false, addEventListener() {} });
globalThis.window = globalThis;

const draw = (source, data) => {
  const drawChart = new Function(`${source}\nreturn drawChart;`)();
  const element = new Node("div");
  drawChart(element, data).view(null);
  const found = [];
  const visit = (node, inside) => {
    const classes = [...inside, node.attributes.class || node.className];
    if (node.name === "text") {
      found.push({ words: node.textContent, x: Number(node.attributes.x), y: Number(node.attributes.y), classes: classes.join(" ") });
    }
    if (node.name === "path") found.push({ path: node.attributes.d, classes: classes.join(" ") });
    for (const child of node.children) visit(child, classes);
  };
  visit(element, []);
  return found;
};

const { source, data } = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(draw(source, data)));
