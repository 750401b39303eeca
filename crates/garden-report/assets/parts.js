/* The parts that `chart.js` is built from: nodes, paths, and where a cursor is. */
const chartParts = (() => {
  const NAMESPACE = "http://www.w3.org/2000/svg";

  const svg = (name, attributes = {}, parent = null) => {
    const node = document.createElementNS(NAMESPACE, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (parent) parent.append(node);
    return node;
  };
  const html = (name, className, text = "", parent = null) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

  /** The path through points; a new piece begins where `null` stands. */
  const path = (points) => {
    let words = "";
    let isFresh = true;
    for (const point of points) {
      if (!point) { isFresh = true; continue; }
      words += `${isFresh ? "M" : "L"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      isFresh = false;
    }
    return words;
  };

  /** The index of the sample nearest to a place; later pieces win where they overlap. */
  const nearest = (places, pieces, place) => {
    let best = null;
    const see = (n) => {
      if (best === null || Math.abs(places[n] - place) <= Math.abs(places[best] - place)) best = n;
    };
    for (const [start, end] of pieces) {
      let low = start;
      let high = end - 1;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (places[middle] < place) low = middle; else high = middle;
      }
      see(low);
      see(high);
    }
    return best;
  };

  /** What an outlook expects at a place: lower end, value and upper end; nothing outside of it. */
  const expected = (outlook, place) => {
    const points = outlook.points;
    for (let n = 1; n < points.length; n += 1) {
      const [a, b] = [points[n - 1], points[n]];
      if (place < a[0] || place > b[0]) continue;
      const share = b[0] > a[0] ? (place - a[0]) / (b[0] - a[0]) : 0;
      return [1, 2, 3].map((at) => a[at] + share * (b[at] - a[at]));
    }
    return null;
  };

  return { svg, html, known, clamp, path, nearest, expected };
})();
