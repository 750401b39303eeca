/* The page around the charts: draws them, keeps their cursors and zoom together, theme, copy and print. */
{
  const root = document.documentElement;
  const charts = [];
  const others = (chart) =>
    charts.filter((other) => other !== chart && other.axis().name === chart.axis().name && other.axis().kind === chart.axis().kind);

  for (const figure of document.querySelectorAll("figure.card")) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const chart = drawChart(figure.querySelector(".chart"), data, {
      viewed: (view) => others(chart).forEach((other) => other.view(view)),
      pointed: (place) => others(chart).forEach((other) => other.point(place)),
    });
    charts.push(chart);
    figure.querySelector("details").open = false;
  }
  performance.mark("charts-drawn");

  const theme = document.getElementById("theme");
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const nameTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
  };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
  nameTheme();

  const answer = document.querySelector("body > script[type='application/json']");
  if (answer) {
    const done = document.getElementById("done");
    const say = (words) => {
      done.textContent = words;
      setTimeout(() => { done.textContent = ""; }, 4000);
    };
    const pretty = () => `${JSON.stringify(JSON.parse(answer.textContent), null, 2)}\n`;
    document.querySelector(".made .tools").hidden = false;
    document.getElementById("copy").addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(pretty());
        say("Copied.");
      } catch {
        say("The browser blocks copying here; download it instead.");
      }
    });
    document.getElementById("download").addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([pretty()], { type: "application/json" }));
      link.download = `${answer.id}.json`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      say(`Downloaded as ${link.download}.`);
    });
  }

  // Drawn for the window and shrunk to a sheet, the labels would be too small to read.
  const PAPER = 760;
  addEventListener("beforeprint", () => charts.forEach((chart) => chart.print(PAPER)));
  addEventListener("afterprint", () => charts.forEach((chart) => chart.print(0)));
}
