// An item's candidates across depth: one drawing, and a slider that tells their probabilities there.

// Every candidate has a dash and a marker of its own, so that no line is told by its colour alone.
const STROKES = ["none", "8 4", "2 3", "10 3 2 3", "5 2", "15 4"];
const MARKERS = [
  "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0", "M-2.8-2.8H2.8V2.8H-2.8Z", "M0-3.8L3.6 2.8H-3.6Z",
  "M0-4L4 0L0 4L-4 0Z", "M-3-3L3 3M-3 3L3-3", "M0-3.8V3.8M-3.8 0H3.8",
];
const LABEL = 14; // pixels that the letter at a line's end needs
const BETWEEN_MARKERS = 70; // pixels

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.flat());
  return node;
}

// How the lines of candidate `place` look: all of its marks take their ink from it.
function lookOf(item, place) {
  const node = svg("g", { class: `line ${item.roles[place]}`, "stroke-dasharray": STROKES[(place + Math.floor(place / MARKERS.length)) % STROKES.length] });
  node.style.setProperty("--line", `var(--${item.roles[place]})`);
  return node;
}

const markerAt = (place, x, y) => svg("path", { class: "marker", d: MARKERS[place % MARKERS.length], transform: `translate(${x} ${y})`, "stroke-dasharray": "none" });

// A piece of a candidate's line, to stand beside its letter.
function sampleOf(item, place) {
  const look = lookOf(item, place);
  look.append(svg("path", { d: "M1 7H33" }), markerAt(place, 17, 7));
  return svg("svg", { class: "sample", width: 34, height: 14, "aria-hidden": "true" }, look);
}

// Packed rows of whole numbers, each the step from the depth before, as their values.
const unpackSteps = (rows, unit) => rows.map((steps) => {
  let level = 0;
  return steps.map((step) => (level += step) / unit);
});

// About `count` round numbers from low to high.
function ticksOf(low, high, count) {
  const rough = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(6)));
}

// Heights for labels that want to stand at `wanted`: each has its room, none leaves [top, bottom].
function spread(wanted, top, bottom) {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]);
  const placed = [];
  let lowest = top;
  for (const i of order) lowest = (placed[i] = Math.max(wanted[i], lowest)) + LABEL;
  let highest = bottom;
  for (const i of order.reverse()) highest = (placed[i] = Math.min(placed[i], highest)) - LABEL;
  return placed;
}

// Where the values of a panel stand in a drawing of this width.
function frameFor(values, range, width) {
  const height = Math.max(width < 520 ? 240 : 300, 60 + LABEL * values.length);
  const box = { left: 40, right: width - 30, top: 26, bottom: height - 40 };
  const all = values.flat();
  const [low, high] = range ?? [Math.min(...all), Math.max(...all)];
  const room = range ? 0 : 0.05 * (high - low || 1);
  const depth = values[0].length - 1;
  return {
    ...box, width, height, low: low - room, high: high + room, depth,
    x: (at) => box.left + ((box.right - box.left) * at) / depth,
    y: (value) => box.bottom - ((box.bottom - box.top) * (value - low + room)) / (high - low + 2 * room),
  };
}

function axesOf(frame, title) {
  const upright = ticksOf(0, frame.depth, Math.max(4, Math.floor(frame.width / 90))).filter(Number.isInteger);
  const across = ticksOf(frame.low, frame.high, 5);
  return svg("g", { class: "axes" },
    across.map((value) => svg("path", { d: `M${frame.left} ${frame.y(value)}H${frame.right}` })),
    across.map((value) => svg("text", { x: frame.left - 7, y: frame.y(value) + 4, "text-anchor": "end" }, String(value).replace("-", "−"))),
    upright.map((depth) => svg("text", { x: frame.x(depth), y: frame.bottom + 18, "text-anchor": "middle" }, String(depth))),
    svg("text", { x: (frame.left + frame.right) / 2, y: frame.bottom + 35, "text-anchor": "middle" }, "depth"),
    svg("text", { x: 2, y: 13 }, title));
}

// The interior window, and the depths that decide.
function groundOf(frame, item) {
  const [start, end] = item.window.map(frame.x);
  return [svg("rect", { class: "window", x: start, y: frame.top, width: end - start, height: frame.bottom - frame.top }),
    ...item.deciding.map((depth) => svg("path", { class: "chosen", d: `M${frame.x(depth)} ${frame.top}V${frame.bottom}` }))];
}

const pathOf = (frame, values) => values.map((value, depth) => `${depth ? "L" : "M"}${frame.x(depth).toFixed(1)} ${frame.y(value).toFixed(1)}`).join("");

function lineOf(item, place, frame, values, label) {
  const look = lookOf(item, place);
  const each = Math.max(1, Math.round((BETWEEN_MARKERS * frame.depth) / (frame.right - frame.left)));
  const marked = values.map((_, depth) => depth).filter((depth) => depth % each === place % each || depth === frame.depth);
  look.append(svg("path", { class: "curve", d: pathOf(frame, values) }), ...marked.map((depth) => markerAt(place, frame.x(depth), frame.y(values[depth]))),
    svg("text", { x: frame.right + 9, y: label + 4 }, item.letters[place]));
  return look;
}

function blindLine(item, place, frame, values) {
  const look = lookOf(item, place);
  look.append(svg("path", { class: "blind", d: pathOf(frame, values) }));
  return look;
}

// The drawing of one panel; `depth` has a line of its own, which the slider moves.
function drawingOf(item, panel, depth, width) {
  const frame = frameFor([...panel.values, ...panel.blind], panel.range, width);
  const labels = spread(panel.values.map((values) => frame.y(values[frame.depth])), frame.top, frame.bottom);
  const behind = ["other", "mix", "corrected", "winner", "truthful"];
  const order = item.roles.map((_, i) => i).sort((a, b) => behind.indexOf(item.roles[a]) - behind.indexOf(item.roles[b]));
  return svg("svg", { class: "drawing", width, height: frame.height, role: "img", "aria-label": `${panel.title} over depth, a line for each of ${item.letters.length} candidates; the slider below tells the numbers` },
    groundOf(frame, item), axesOf(frame, panel.title), svg("path", { class: "here", d: `M${frame.x(depth)} ${frame.top}V${frame.bottom}` }),
    order.filter((place) => panel.blind.length).map((place) => blindLine(item, place, frame, panel.blind[place])),
    order.map((place) => lineOf(item, place, frame, panel.values[place], labels[place])));
}

// The candidates' probabilities at one depth, each in its bar.
function readingsOf(item, panel, depth) {
  return panel.values.map((values, place) => element("li", {}, element("span", { class: "letter" }, item.letters[place]), sampleOf(item, place), bar("at", values[depth])));
}

const PANELS = [
  { short: "Probability", title: "probability among candidates", range: [0, 1] },
  { short: "Score", title: "mean log-probability a token, nats", range: null },
];
const NOTE = "Dotted: the depths whose scores decide, if it is not the last. Shaded: the interior window in which d_eff is measured.";
const FAINT = " Faint: the same candidates with the question left out.";

function trajectoryView(item) {
  if (!item.panels.length) return [];
  const panels = item.panels.map((packed, place) => ({
    ...PANELS[place], values: unpackSteps(packed.steps, packed.unit), blind: unpackSteps(packed.blind, packed.unit),
  }));
  const last = panels[0].values[0].length - 1;
  const at = { panel: 0, depth: item.deciding.length === 1 ? item.deciding[0] : last };
  const room = element("div", { class: "trajectory" });
  const readings = element("ol", { class: "readings" });
  const told = element("output", {});
  const slider = element("input", { type: "range", min: 0, max: last, step: 1, value: String(at.depth), "aria-label": "Depth", input: () => show({ depth: Number(slider.value) }) });
  const choice = element("div", { class: "switch" }, panels.map((panel, place) => button(panel.short, () => show({ panel: place }))));
  const draw = () => room.clientWidth && room.replaceChildren(drawingOf(item, panels[at.panel], at.depth, room.clientWidth));
  const show = (change) => {
    Object.assign(at, change);
    [...choice.children].forEach((child, place) => child.setAttribute("aria-pressed", String(place === at.panel)));
    told.textContent = `depth ${at.depth} of ${last}`;
    readings.replaceChildren(...readingsOf(item, panels[0], at.depth));
    draw();
  };
  show({});
  new ResizeObserver(draw).observe(room);
  return [element("h4", {}, "Across the model’s depth"), choice, room, element("p", { class: "note" }, panels[0].blind.length ? NOTE + FAINT : NOTE),
    element("label", { class: "depth" }, element("span", {}, "Probabilities at ", told), slider), readings];
}
