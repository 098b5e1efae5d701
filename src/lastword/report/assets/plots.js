// Figure data drawn by plotly. Nothing is computed here but places on the screen.

const drawn = new Map(); // element -> figure, to draw again when the scheme changes
let plotly = null;

// plotly is unpacked when the first plot comes into view, so that the page opens without it.
function loadPlotly() {
  plotly ??= unpack("plotly").then((source) => {
    document.head.append(element("script", {}, source));
    return window.Plotly;
  });
  return plotly;
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const literal = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const DASHES = { other: "dash" };
const WIDTHS = { truthful: 3, winner: 2.4, other: 1.2 };

const MARKS = {
  line: (mark) => ({
    traces: [{
      type: "scatter", mode: mark.markers ? "lines+markers" : "lines", x: mark.x, y: mark.y,
      name: literal(mark.name ?? mark.label), showlegend: false, hoverinfo: mark.name ?? mark.label ? "x+y+name" : "x+y",
      line: { color: color(mark.role), width: WIDTHS[mark.role] ?? 2, dash: DASHES[mark.role] },
    }],
    annotations: mark.label ? [{
      x: mark.x.at(-1), y: mark.y.at(-1), text: literal(mark.label), showarrow: false, xanchor: "left",
      yanchor: mark.above ? "bottom" : "top", font: { color: color(mark.role) },
    }] : [],
  }),
  bars: (mark) => {
    const places = mark.names.map((_, place) => place);
    const along = mark.horizontal ? { x: mark.values, y: places, orientation: "h" } : { x: places, y: mark.values };
    return {
      traces: [{
        type: "bar", ...along, base: mark.start ?? undefined, name: literal(mark.label), offsetgroup: mark.group,
        showlegend: Boolean(mark.label), text: mark.texts?.map(literal), textfont: { color: color(mark.text_role) }, textposition: "outside", cliponaxis: false,
        hovertext: mark.names.map(literal), hoverinfo: mark.horizontal ? "text+x+name" : "text+y+name",
        marker: { color: color(mark.role) },
      }],
      names: { axis: mark.horizontal ? "yaxis" : "xaxis", texts: mark.names },
    };
  },
  points: (mark) => ({
    traces: [{
      type: "scatter", mode: "markers+text", x: mark.x, y: mark.y, text: mark.names.map(literal), cliponaxis: false,
      textposition: mark.x.map((x) => (mark.x.filter((other) => other < x).length % 2 ? "bottom center" : "top center")), textfont: { size: 10 }, name: literal(mark.label), showlegend: Boolean(mark.label),
      hoverinfo: "text+x+y",
      marker: { color: color(mark.role), opacity: 0.85, size: (mark.sizes ?? mark.x.map(() => 1)).map((s) => 9 * Math.sqrt(s)) },
    }],
  }),
  rule: (mark, panel) => {
    const upright = mark.axis === "x";
    const at = upright && panel.x_scale === "log" ? Math.log10(mark.at) : mark.at;
    const across = upright ? { x0: mark.at, x1: mark.at, y0: 0, y1: 1, yref: "paper" } : { y0: mark.at, y1: mark.at, x0: 0, x1: 1, xref: "paper" };
    return {
      shapes: [{ type: "line", ...across, line: { color: color(mark.role), width: 1.4, dash: "dot" } }],
      annotations: mark.label ? [{
        text: literal(mark.label), showarrow: false, font: { size: 11 },
        ...(upright ? { x: at, y: 1, yref: "paper", xanchor: "center", yanchor: "bottom" } : { x: 1, xref: "paper", y: at, xanchor: "right", yanchor: "bottom" }),
      }] : [],
    };
  },
  band: (mark) => ({
    shapes: [{ type: "rect", x0: mark.start, x1: mark.end, y0: 0, y1: 1, yref: "paper", layer: "below", line: { width: 0 }, fillcolor: color(mark.role) }],
  }),
  note: (mark) => ({
    annotations: [{ x: mark.x, y: mark.y, text: literal(mark.text), showarrow: false, xanchor: mark.centred ? "center" : "left", yanchor: "bottom", font: { color: color(mark.role), size: mark.centred ? 11 : 13 } }],
  }),
};

function axis(title, panel) {
  return {
    title: { text: literal(title), font: { size: 12 }, standoff: 6 }, automargin: true, zeroline: false, visible: panel.axes,
    gridcolor: color("rule"), linecolor: color("soft"), tickcolor: color("rule"), fixedrange: true,
  };
}

const NARROW = 560; // pixels: names beside bars take two lines there

// A long name in two lines, parted where it may be and nearest to its middle.
function inTwo(name) {
  const places = [...name.matchAll(/[ -]/g)].map((match) => match.index + 1);
  const off = (place) => Math.abs(place - name.length / 2);
  const at = name.length > 18 ? places.reduce((best, place) => (off(place) < off(best) ? place : best), 0) : 0;
  return [name.slice(0, at), name.slice(at)].filter(Boolean).map(literal).join("<br>");
}

// From the lowest to the highest of the values and zero, with room for texts beside the bars.
function withRoom(values, share) {
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const room = share * (high - low || 1);
  return [low < 0 ? low - room : 0, high > 0 ? high + room : 0];
}

// Known before anything is drawn, so that room is kept for it.
function heightOf(panel, width) {
  if (panel.kind === "diagram") return 320;
  const along = panel.marks.find((mark) => mark.kind === "bars" && mark.horizontal);
  return panel.height ?? (along ? Math.max(260, 90 + (width < NARROW ? 36 : 26) * along.names.length) : 260);
}

function layoutOf(panel, parts, width) {
  const narrow = width < NARROW;
  const marks = panel.marks;
  const bars = marks.filter((mark) => mark.kind === "bars");
  const named = marks.some((mark) => mark.kind === "rule" && mark.axis === "x" && mark.label);
  const layout = {
    font: { family: "system-ui, sans-serif", size: 12, color: color("soft") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 46, r: bars.some((mark) => mark.texts) ? 60 : 24, t: bars.length ? 34 : named ? 24 : 12, b: 42 },
    height: heightOf(panel, width),
    xaxis: { ...axis(panel.x_label, panel), type: panel.x_scale }, yaxis: axis(panel.y_label, panel),
    barmode: bars.some((mark) => mark.groups > 1) ? "group" : "overlay", bargap: 0.25,
    hovermode: marks.some((mark) => mark.kind === "line") ? "x unified" : "closest",
    hoverlabel: { bgcolor: color("panel"), bordercolor: color("rule"), font: { color: color("ink") } },
    legend: { orientation: "h", x: 0, xref: "container", y: 1, yanchor: "bottom" }, shapes: parts.flatMap((p) => p.shapes ?? []), annotations: parts.flatMap((p) => p.annotations ?? []),
  };
  if (panel.x_range) layout.xaxis.range = panel.x_range;
  else if (bars.some((mark) => mark.horizontal && mark.texts)) layout.xaxis.range = withRoom(bars.flatMap((mark) => mark.values), narrow ? 0.3 : 0.1);
  if (panel.y_range) layout.yaxis.range = [panel.y_range[0], panel.y_range[1] + 0.04 * (panel.y_range[1] - panel.y_range[0])];
  if (!panel.axes) Object.assign(layout, { xaxis: { ...layout.xaxis, range: [0, 1] }, yaxis: { ...layout.yaxis, range: [0, 1] } });
  if (panel.x_names) Object.assign(layout.xaxis, { tickvals: panel.x_names.map((_, i) => i), ticktext: panel.x_names.map(literal) });
  const names = parts.find((p) => p.names)?.names;
  if (names) Object.assign(layout[names.axis], { tickvals: names.texts.map((_, i) => i), ticktext: names.texts.map(narrow && names.axis === "yaxis" ? inTwo : literal), tickfont: { size: narrow ? 10 : 12 } });
  if (names?.axis === "yaxis") layout.yaxis.autorange = "reversed";
  return layout;
}

function drawPanel(Plotly, node, panel) {
  const parts = panel.marks.map((mark) => MARKS[mark.kind](mark, panel));
  const config = { displaylogo: false, displayModeBar: false, responsive: true };
  return Plotly.react(node, parts.flatMap((p) => p.traces ?? []), layoutOf(panel, parts, node.clientWidth), config);
}

const between = (from, to, share) => ({ x: from.x + share * (to.x - from.x), y: from.y + share * (to.y - from.y) });
const line = (from, to, ink) => ({ ...to, ax: from.x, ay: from.y, axref: "x", ayref: "y", text: "", arrowcolor: ink, arrowwidth: 1.4 });
const isSteep = (from, to) => Math.abs(to.x - from.x) < Math.abs(to.y - from.y); // named at its side, not above

function diagramPanel(diagram, node) {
  const at = Object.fromEntries(diagram.boxes.map((box) => [box.name, box]));
  const arrows = diagram.arrows.map((arrow) => {
    const [from, to] = [at[arrow.start], at[arrow.end]];
    const ink = color(arrow.dashed ? "other" : "chosen");
    return { from, to, ink, arrow };
  });
  const range = { range: [0, 1], visible: false, fixedrange: true };
  const layout = {
    height: heightOf(diagram), margin: { l: 4, r: 4, t: 4, b: 4 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: color("ink") }, xaxis: { ...range }, yaxis: { ...range },
    annotations: [
      ...arrows.flatMap(({ from, to, ink }) => [
        { ...line(from, to, ink), arrowhead: 0 },
        { ...line(from, between(from, to, 0.54), ink), arrowhead: 2 }, // boxes would hide a head at the end
      ]),
      ...arrows.map(({ from, to, ink, arrow }) => ({
        ...between(from, to, 0.5), ...(isSteep(from, to) ? { xshift: 6, xanchor: "left" } : { yshift: 12 }), text: literal(arrow.label), showarrow: false, font: { color: ink },
      })),
      ...diagram.boxes.map((box) => ({
        x: box.x, y: box.y, text: `<b>${literal(box.title)}</b><br>${literal(box.text).replaceAll("\n", "<br>")}`, showarrow: false,
        bgcolor: color("panel"), bordercolor: color(box.role), borderwidth: 1.5, borderpad: 8,
      })),
    ],
  };
  return window.Plotly.react(node, [], layout, { staticPlot: true, responsive: true });
}

// How much room a panel takes: bars with names along the side need all of it.
function frameOf(panel, figure) {
  if (figure.kind === "diagram") return null;
  if (panel.marks.some((mark) => mark.horizontal)) return "wide";
  return figure.panels.length === 1 ? "sole" : null;
}

// What the letters of a figure stand for.
function keyView(key, attributes) {
  if (!key?.length) return null;
  const rows = key.map(({ letter, text, true: truth }) => element("li", { class: truth ? "truthful" : null },
    element("span", { class: "letter" }, letter), element("span", { dir: "auto" }, truth ? `${text} ✓` : text)));
  return element("ul", { class: "letters", ...attributes }, rows);
}

// A figure's frames, with the room that its plots will take: what stands below does not move when they are drawn.
function place(container, figure) {
  container.style.setProperty("--columns", figure.columns ?? 1);
  container.classList.toggle("drawn-diagram", figure.kind === "diagram");
  const panels = figure.kind === "diagram" ? [figure] : figure.panels;
  const nodes = panels.map((panel) => {
    const heading = panel.kind !== "diagram" && panel.title ? element("p", { class: "panel-title" }, panel.title) : null;
    const plot = element("div", { class: "plot" });
    return { panel, plot, frame: element("div", { class: frameOf(panel, figure) }, heading, plot, keyView(panel.key)) };
  });
  container.replaceChildren(...nodes.map((node) => node.frame), ...[keyView(figure.key, { class: "letters wide" })].filter(Boolean));
  for (const { panel, plot } of nodes) plot.style.height = `${heightOf(panel, plot.clientWidth)}px`;
  return nodes;
}

// Draws a figure into an element, one plot a panel.
async function draw(container, figure) {
  drawn.set(container, figure);
  const Plotly = await loadPlotly();
  if (drawn.get(container) !== figure) return; // another figure took its place meanwhile
  const nodes = place(container, figure);
  await Promise.all(nodes.map(({ panel, plot }) => (panel.kind === "diagram" ? diagramPanel(panel, plot) : drawPanel(Plotly, plot, panel))));
}

function watchPlots(figures) {
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      draw(target, figures[target.dataset.plot]);
    }
  }, { rootMargin: "200px" });
  document.querySelectorAll("[data-plot]").forEach((node) => {
    place(node, figures[node.dataset.plot]);
    seen.observe(node);
  });
  const again = () => drawn.forEach((figure, node) => node.isConnected && draw(node, figure));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  addEventListener("beforeprint", () => onPaper(figures));
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("paper");
    for (const table of document.querySelectorAll(".scroll > table")) table.style.zoom = "";
    again();
  });
  (window.requestIdleCallback ?? setTimeout)(loadPlotly); // nothing can be waited for once printing has begun
}

// Paper is light, cannot be scrolled, and shows figures that never came into view.
function onPaper(figures) {
  document.documentElement.classList.add("paper");
  for (const table of document.querySelectorAll(".scroll > table")) table.style.zoom = Math.min(1, table.parentNode.clientWidth / table.offsetWidth);
  for (const node of document.querySelectorAll("[data-plot]")) if (node.offsetParent) draw(node, figures[node.dataset.plot]);
}
