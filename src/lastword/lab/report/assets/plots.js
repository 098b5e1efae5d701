// Figure data drawn as SVG at the width that there is. Nothing is computed here but places on the screen; inks are
// those of the style, so that a drawing follows the scheme and the paper by itself.

const NARROW = 560; // pixels: names beside bars take two lines there
const LETTER = 6.3; // pixels of one, in the middle
const DASHED = { other: "6 4" };
const WIDTHS = { truthful: 3, winner: 2.4, other: 1.2 };

const ink = (role, property = "stroke") => ({ style: `${property}: var(--${role})` });
const words = (x, y, text, anchor = "start", attributes = {}) => svg("text", { x, y, "text-anchor": anchor, ...attributes }, text);
const minus = (value) => String(Number(value.toPrecision(6))).replace("-", "−");
const round = (value) => Number(value.toPrecision(3));

// A mark that tells its numbers to who points at it.
function telling(node, ...parts) {
  node.append(svg("title", {}, parts.filter((part) => part !== "").map((part) => (typeof part === "number" ? minus(round(part)) : part)).join(", ")));
  return node;
}

const MARKS = {
  line: (mark, at) => {
    const points = mark.x.map((x, i) => [x, mark.y[i]]);
    const there = points.filter(([, y]) => y !== null);
    const path = points.map(([x, y], i) => (y === null ? "" : `${i && points[i - 1][1] !== null ? "L" : "M"}${at.x(x).toFixed(1)} ${at.y(y).toFixed(1)}`)).join("");
    const [x, y] = there.at(-1) ?? [0, 0];
    return [
      svg("path", { class: "curve", d: path, "stroke-width": WIDTHS[mark.role] ?? 2, "stroke-dasharray": DASHED[mark.role] ?? "none", ...ink(mark.role) }),
      ...(mark.markers ? there : []).map(([x, y]) => telling(svg("circle", { cx: at.x(x), cy: at.y(y), r: 3, ...ink(mark.role, "fill") }), mark.label, x, y)),
      mark.label ? words(at.x(x) + 5, at.y(y) + (mark.above ? -2 : 11), mark.label, "start", ink(mark.role, "fill")) : null,
    ];
  },
  bars: (mark, at) => mark.values.flatMap((value, i) => {
    if (value === null) return [];
    const [start, size] = [mark.start?.[i] ?? 0, (0.8 * at.slot) / mark.groups];
    const side = at.place(i) + (mark.group - mark.groups / 2) * size;
    const along = mark.horizontal ? at.x : at.y;
    const [from, to] = [along(start), along(start + value)].sort((a, b) => a - b);
    const box = mark.horizontal ? { x: from, width: to - from, y: side, height: size } : { x: side, width: size, y: from, height: to - from };
    const text = mark.texts?.[i];
    return [
      telling(svg("rect", { ...box, ...ink(mark.role, "fill") }), mark.names[i], mark.label, value),
      text ? words(value < 0 ? from - 4 : to + 4, side + size / 2 + 4, text, value < 0 ? "end" : "start", ink(mark.text_role, "fill")) : null,
    ];
  }),
  points: (mark, at) => {
    const order = mark.x.map((_, i) => i).sort((a, b) => mark.x[a] - mark.x[b]); // neighbours are named above and below in turn
    return order.flatMap((i, turn) => [
      telling(svg("circle", { cx: at.x(mark.x[i]), cy: at.y(mark.y[i]), r: 4.5 * Math.sqrt(mark.sizes?.[i] ?? 1), opacity: 0.85, ...ink(mark.role, "fill") }), mark.names[i], mark.x[i], mark.y[i]),
      words(at.x(mark.x[i]), at.y(mark.y[i]) + (turn % 2 ? 18 : -9), mark.names[i], "middle"),
    ]);
  },
  rule: (mark, at) => {
    const upright = mark.axis === "x";
    const [x, y] = [at.x(mark.at), at.y(mark.at)];
    return [
      svg("path", { class: "chosen", d: upright ? `M${x} ${at.top}V${at.bottom}` : `M${at.left} ${y}H${at.right}`, ...ink(mark.role) }),
      mark.label ? (upright ? words(x, at.top - 4, mark.label, "middle") : words(at.right, y - 4, mark.label, "end")) : null,
    ];
  },
  band: (mark, at) => [svg("rect", { class: "window", x: at.x(mark.start), width: at.x(mark.end) - at.x(mark.start), y: at.top, height: at.bottom - at.top })],
  note: (mark, at) => [words(at.x(mark.x), at.y(mark.y) - (mark.centred ? 5 : 0), mark.text, mark.centred ? "middle" : "start", ink(mark.role, "fill"))],
};

// Every value of a panel along one axis.
function valuesAlong(panel, axis) {
  return panel.marks.flatMap((mark) => {
    if (mark.kind === "bars") return mark.horizontal === (axis === "x") ? [0, ...mark.values.map((value, i) => value + (mark.start?.[i] ?? 0))] : [];
    if (mark.kind === "rule") return mark.axis === axis ? [mark.at] : [];
    if (mark.kind === "band") return axis === "x" ? [mark.start, mark.end] : [];
    return [mark[axis]].flat().filter((value) => value !== null);
  });
}

// The lowest and the highest value of an axis, with some room, where the panel does not set them.
function extentOf(panel, axis, room) {
  const set = panel.axes ? panel[`${axis}_range`] : [0, 1];
  const values = set ?? valuesAlong(panel, axis);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (!panel.axes) return set;
  if (set) return axis === "y" ? [low, high + 0.04 * (high - low)] : set;
  if (axis === "x" && panel.x_scale === "log") return [low / 1.3, high * 1.3];
  const more = room * (high - low || 1);
  const bars = panel.marks.some((mark) => mark.kind === "bars" && mark.horizontal === (axis === "x"));
  return [bars && low === 0 ? 0 : low - more, high + more];
}

const powersIn = (low, high) => Array.from({ length: 19 }, (_, i) => 10 ** (i - 9)).flatMap((power) => [1, 2, 5].map((factor) => Number((factor * power).toPrecision(1)))).filter((tick) => tick >= low && tick <= high);

// A long name in two lines, parted where it may be and nearest to its middle.
function inTwo(name) {
  const places = [...name.matchAll(/[ -]/g)].map((match) => match.index + 1);
  const off = (place) => Math.abs(place - name.length / 2);
  const at = name.length > 18 ? places.reduce((best, place) => (off(place) < off(best) ? place : best), 0) : 0;
  return [name.slice(0, at), name.slice(at)].filter(Boolean);
}

function heightOf(panel, width) {
  const along = panel.marks.find((mark) => mark.kind === "bars" && mark.horizontal);
  return along ? Math.max(260, 90 + (width < NARROW ? 36 : 26) * along.names.length) : 270;
}

// Where values and names stand in a drawing of this width.
function roomFor(panel, width) {
  const bars = panel.marks.filter((mark) => mark.kind === "bars");
  const across = bars.some((mark) => mark.horizontal);
  const names = bars[0]?.names.map((name) => (across && width < NARROW ? inTwo(name) : [name])) ?? panel.x_names?.map((name) => [name]);
  const longest = Math.max(0, ...(names ?? []).flat().map((line) => line.length));
  const ends = Math.max(0, ...panel.marks.filter((mark) => mark.kind === "line").map((mark) => mark.label.length));
  const above = [panel.y_label, bars.some((mark) => mark.label), panel.marks.some((mark) => mark.kind === "rule" && mark.label && mark.axis === "x")].filter(Boolean).length;
  const height = heightOf(panel, width);
  const [left, right, top] = [across ? Math.min(0.45 * width, 12 + LETTER * longest) : 44, width - 14 - LETTER * ends, 8 + 15 * above];
  const tilted = !across && names && LETTER * longest > (right - left) / names.length;
  const bottom = height - (panel.x_label ? 40 : 24) - (tilted ? 3.6 * longest : 0);
  const scale = ([low, high], from, to, bend = (value) => value) => (value) => from + ((to - from) * (bend(value) - bend(low))) / (bend(high) - bend(low) || 1);
  const [x, y] = [extentOf(panel, "x", across ? (width < NARROW ? 0.3 : 0.1) : 0.04), extentOf(panel, "y", 0.12)];
  const slot = (across ? bottom - top : right - left) / Math.max(1, names?.length ?? 1);
  const byName = bars.length > 0;
  return {
    width, height, left, right, top, bottom, names, across, tilted, slot, byName, extent: { x, y },
    x: panel.x_scale === "log" ? scale(x, left, right, Math.log) : scale(x, left, right), y: scale(y, bottom, top),
    place: (i) => (across ? top : left) + slot * (i + 0.5),
  };
}

function axesFor(panel, at) {
  if (!panel.axes) return null;
  const upright = at.names && !at.across ? [] : (panel.x_scale === "log" ? powersIn : (low, high) => ticksOf(low, high, Math.max(3, Math.floor((at.right - at.left) / 70))))(...at.extent.x);
  const level = at.across ? [] : ticksOf(...at.extent.y, 5);
  const names = (at.names ?? []).flatMap((lines, i) => {
    if (at.across) return lines.map((line, row) => words(at.left - 7, at.place(i) + 4 + 13 * (row - (lines.length - 1) / 2), line, "end"));
    const x = at.byName ? at.place(i) : at.x(i);
    return at.tilted ? words(0, 0, lines[0], "end", { transform: `translate(${x + 4} ${at.bottom + 14}) rotate(-40)` }) : words(x, at.bottom + 17, lines[0], "middle");
  });
  return svg("g", { class: "axes" },
    level.map((value) => svg("path", { d: `M${at.left} ${at.y(value)}H${at.right}` })),
    level.map((value) => words(at.left - 7, at.y(value) + 4, minus(value), "end")),
    upright.map((value) => svg("path", { d: `M${at.x(value)} ${at.bottom}V${at.across ? at.top : at.bottom + 4}` })),
    upright.map((value) => words(at.x(value), at.bottom + 17, minus(value), "middle")),
    names, panel.x_label ? words((at.left + at.right) / 2, at.height - 4, panel.x_label, "middle") : null, words(2, 12, panel.y_label));
}

// What the inks of bars mean, above them.
function legendOf(panel, at) {
  let x = panel.y_label ? at.left : 2;
  return panel.marks.filter((mark) => mark.kind === "bars" && mark.label).flatMap((mark) => {
    const start = x;
    x += 30 + LETTER * mark.label.length;
    return [svg("rect", { x: start, y: at.top - 18, width: 10, height: 10, ...ink(mark.role, "fill") }), words(start + 15, at.top - 9, mark.label)];
  });
}

function panelView(panel, title, width) {
  const at = roomFor(panel, width);
  const [behind, ahead] = [panel.marks.filter((mark) => mark.kind === "band"), panel.marks.filter((mark) => mark.kind !== "band")];
  const shapes = (marks) => marks.flatMap((mark) => MARKS[mark.kind](mark, at)).filter(Boolean);
  return svg("svg", { class: "drawing", width, height: at.height, role: "img", "aria-label": panel.title || title },
    ...[shapes(behind), axesFor(panel, at), shapes(ahead), legendOf(panel, at)].flat().filter(Boolean));
}

function diagramView(diagram, width) {
  const height = 320;
  const boxes = Object.fromEntries(diagram.boxes.map((box) => [box.name, { ...box, x: width * box.x, y: height * (1 - box.y), lines: [box.title, ...box.text.split("\n")] }]));
  const arrows = diagram.arrows.flatMap(({ start, end, label, dashed }) => {
    const [from, to] = [boxes[start], boxes[end]];
    const [dx, dy] = [to.x - from.x, to.y - from.y];
    const role = dashed ? "other" : "chosen";
    const steep = Math.abs(dx) < Math.abs(dy); // named at its side, not above
    const [x, y] = [from.x + 0.54 * dx, from.y + 0.54 * dy]; // boxes would hide a head at the end
    return [
      svg("path", { class: "curve", d: `M${from.x} ${from.y}L${to.x} ${to.y}`, "stroke-width": 1.4, "stroke-dasharray": dashed ? "6 4" : "none", ...ink(role) }),
      svg("path", { d: "M-7-4L0 0L-7 4Z", transform: `translate(${x} ${y}) rotate(${(180 * Math.atan2(dy, dx)) / Math.PI})`, ...ink(role, "fill") }),
      words(from.x + dx / 2 + (steep ? 8 : 0), from.y + dy / 2 - (steep ? 0 : 9), label, steep ? "start" : "middle"),
    ];
  });
  const shown = Object.values(boxes).flatMap(({ x, y, lines, role }) => {
    const [wide, high] = [LETTER * Math.max(...lines.map((line) => line.length)) + 18, 17 * lines.length + 14];
    return [
      svg("rect", { x: x - wide / 2, y: y - high / 2, width: wide, height: high, rx: 5, "stroke-width": 1.5, style: `stroke: var(--${role}); fill: var(--panel)` }),
      ...lines.map((line, i) => words(x, y - high / 2 + 20 + 17 * i, line, "middle", i ? {} : { style: "font-weight: 600" })),
    ];
  });
  return svg("svg", { class: "drawing", width, height, role: "img", "aria-label": diagram.title }, ...arrows, ...shown);
}

// How much room a panel takes: bars with names along the side need all of it.
function frameOf(panel, figure) {
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

// Draws a figure into an element, one drawing a panel.
function draw(container, figure) {
  const diagram = figure.kind === "diagram";
  container.style.setProperty("--columns", figure.columns ?? 1);
  container.classList.toggle("drawn-diagram", diagram);
  if (diagram) container.tabIndex = 0; // it scrolls on a phone
  const nodes = (diagram ? [figure] : figure.panels).map((panel) => {
    const plot = element("div", { class: "plot" });
    const heading = !diagram && panel.title ? element("p", { class: "panel-title" }, panel.title) : null;
    return { panel, plot, frame: element("div", { class: diagram ? null : frameOf(panel, figure) }, heading, plot, keyView(panel.key)) };
  });
  container.replaceChildren(...nodes.map((node) => node.frame), ...[keyView(figure.key, { class: "letters wide" })].filter(Boolean));
  for (const { panel, plot } of nodes) plot.append(diagram ? diagramView(panel, plot.clientWidth) : panelView(panel, figure.title, plot.clientWidth));
}

// Figures are drawn as soon as they have a width, and again when it changes.
function watchPlots(figures) {
  const widths = new Map();
  const redraw = (node) => {
    if (!node.clientWidth || widths.get(node) === node.clientWidth) return;
    widths.set(node, node.clientWidth);
    draw(node, figures[node.dataset.plot]);
  };
  const nodes = [...document.querySelectorAll("[data-plot]")];
  const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => redraw(target)));
  nodes.forEach((node) => { redraw(node); resized.observe(node); });
  const tables = document.querySelectorAll(".scroll > table");
  addEventListener("beforeprint", () => { // paper is light and cannot be scrolled
    document.documentElement.classList.add("paper");
    for (const table of tables) table.style.zoom = Math.min(1, table.parentNode.clientWidth / table.offsetWidth);
    nodes.forEach(redraw);
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("paper");
    for (const table of tables) table.style.zoom = "";
    nodes.forEach(redraw);
  });
}
