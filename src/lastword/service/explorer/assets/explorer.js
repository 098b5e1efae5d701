// The explorer: a question, its answer, what another threshold would do, and a run's records.

const form = document.querySelector("#ask form");
const article = document.getElementById("answer");
const PAUSE = 120; // milliseconds after which a slider that rests is asked about

// What an item shows below its portrait: what the rule would do were a threshold another one.
function whatIfView(view, again) {
  if (!view.thresholds.length) return [];
  const moved = {};
  let waiting = null;
  const told = element("div", { class: "outcome", role: "status" }, element("p", { class: "note" }, "Nothing is moved: the rule answers as above."));
  const ask = async () => {
    const { what_if } = await again(moved).catch((error) => ({ what_if: { failed: error.message } }));
    told.replaceChildren(...(Object.keys(moved).length ? outcomeView(what_if) : [element("p", { class: "note" }, "Nothing is moved: the rule answers as above.")]));
  };
  const rows = view.thresholds.map((row) => thresholdView(row, (value) => {
    if (value === row.frozen) delete moved[row.name];
    else moved[row.name] = value;
    clearTimeout(waiting);
    waiting = setTimeout(ask, PAUSE);
  }));
  return [element("h4", {}, "What if a threshold were another one"),
    element("p", { class: "note" }, "Θ itself is frozen: the answer above stands, and nothing that is moved here is kept. The rule is asked again on the same trajectory."),
    element("div", { class: "thresholds" }, rows), told];
}

function outcomeView(outcome) {
  if (outcome.failed) return [alertView(outcome.failed)];
  const chip = element("span", { class: `chip ${outcome.differs ? "changed" : "unchanged"}` }, outcome.differs ? `the answer would be “${outcome.answer}”` : `the answer stays “${outcome.answer}”`);
  return [element("p", {}, chip, ` by ${outcome.operator}`), element("p", { class: "told" }, outcome.words)];
}

const shown = (value) => (typeof value === "number" ? Number(value.toPrecision(5)).toString().replace("-", "−") : String(value).replace("inf", "∞"));

function thresholdView(row, set) {
  const output = element("output", {}, shown(row.frozen));
  const slider = element("input", { type: "range", min: row.low, max: row.high, step: "any", value: String(row.frozen), "aria-label": `Threshold of ${row.asked}`, input: () => move(Number(slider.value)) });
  const reset = button("Θ", () => { slider.value = String(row.frozen); move(row.frozen); }, { class: "reset", title: "Back to the frozen value", "aria-label": `Back to the frozen value of ${row.asked}`, hidden: true });
  const move = (value) => {
    output.textContent = shown(value);
    reset.hidden = value === row.frozen;
    set(value);
  };
  const track = element("div", { class: "track" }, slider);
  if (typeof row.value === "number") {
    const mark = element("span", { class: "mark", "aria-hidden": "true" });
    mark.style.setProperty("--at", String((row.value - row.low) / (row.high - row.low)));
    track.append(mark);
  }
  return element("div", { class: "threshold" },
    element("div", { class: "named" }, element("strong", {}, row.asked), element("span", { class: "note" }, row.meaning)), track,
    element("div", { class: "values" }, element("span", {}, "threshold ", output, " ", reset), element("span", { class: "note" }, `this item ▾ ${shown(row.value)}`)));
}

// The question as it stands in the form, and the form as a link tells it.
function questionOf() {
  const { model, prompt, candidates, blind } = form.elements;
  const question = { model: model.value, prompt: prompt.value, candidates: linesOf(candidates.value) };
  if (blind.value.trim()) question.blind_prompt = blind.value;
  if (form.truthful?.length === question.candidates.length) question.truthful = form.truthful;
  return question;
}

function linkOf(question) {
  const words = new URLSearchParams({ model: question.model, prompt: question.prompt });
  question.candidates.forEach((candidate) => words.append("candidate", candidate));
  question.truthful?.forEach((truth, place) => truth && words.append("true", place));
  if (question.blind_prompt) words.set("blind", question.blind_prompt);
  return `#ask?${words}`;
}

function fill({ prompt, candidates, blind_prompt, truthful }) {
  form.elements.prompt.value = prompt;
  form.elements.candidates.value = candidates.join("\n");
  form.elements.blind.value = blind_prompt ?? "";
  form.truthful = truthful;
}

function fillFrom(hash) {
  const words = new URLSearchParams(hash.slice("#ask?".length));
  const candidates = words.getAll("candidate");
  const places = words.getAll("true").map(Number);
  const models = [...form.elements.model.options].map((option) => option.value);
  if (models.includes(words.get("model"))) form.elements.model.value = words.get("model");
  fill({ prompt: words.get("prompt") ?? "", candidates, blind_prompt: words.get("blind"), truthful: places.length ? candidates.map((_, place) => places.includes(place)) : null });
}

let latest = 0; // an answer that comes after a later question is not shown

// What was asked has an address of its own, so that the back button leads to the question before.
function askAnew() {
  history.pushState(null, "", linkOf(questionOf()));
  return ask();
}

async function ask() {
  const question = questionOf();
  const turn = ++latest;
  article.setAttribute("aria-busy", "true");
  const nodes = await call("explorer/answer", question).then(
    (view) => [...portraitView(view.text, view.item), ...whatIfView(view, (thresholds) => call("explorer/answer", { ...question, thresholds }))],
    (error) => [alertView(error.message)],
  );
  if (turn !== latest) return;
  article.replaceChildren(...nodes);
  article.setAttribute("aria-busy", "false");
}

function modelView(model) {
  const facts = model.facts.map(({ name, value }) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  return element("div", { class: "model" }, element("h3", {}, model.name), element("dl", { class: "facts" }, facts),
    model.alerts.map(alertView), model.told.map((line) => element("p", {}, line)));
}

async function showModels() {
  const room = document.querySelector(".models");
  const { models } = await call("explorer/models").catch((error) => ({ models: [], failed: room.replaceChildren(alertView(error.message)) }));
  if (models.length) room.replaceChildren(...models.map(modelView));
}

async function recordsBrowser() {
  const load = async (entry) => {
    const view = await call("explorer/record", { cell: entry.cell, item: entry.item });
    return [view.text, view.item, whatIfView(view, (thresholds) => call("explorer/record", { cell: entry.cell, item: entry.item, thresholds }))];
  };
  return new Browser(await unpackJSON("records"), load);
}

function offer(examples) {
  const { model, example } = form.elements;
  const chosen = examples[model.value] ?? [];
  example.replaceChildren(element("option", { value: "" }, "a question of your own"), ...chosen.map(({ name }, place) => element("option", { value: place }, name)));
  return chosen;
}

function wireForm(examples) {
  const { model, example, candidates, link } = form.elements;
  const pick = (place) => { example.value = place; fill(offer(examples)[place]); example.value = place; };
  model.addEventListener("change", () => { offer(examples); askAnew(); });
  example.addEventListener("change", () => { if (example.value !== "") { pick(example.value); askAnew(); } });
  candidates.addEventListener("input", () => { form.truthful = null; });
  form.addEventListener("input", (event) => { if (event.target.tagName === "TEXTAREA") example.value = ""; });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    askAnew().then(() => article.focus({ preventScroll: !matchMedia("(max-width: 52rem)").matches }));
  });
  link.addEventListener("click", async () => {
    history.replaceState(null, "", linkOf(questionOf()));
    document.getElementById("linked").textContent = (await copy(location.href)) ? "The link is copied; it holds the whole question." : "The address of this page now holds the whole question.";
  });
  return pick;
}

async function start() {
  const examples = await unpackJSON("examples");
  offer(examples);
  const pick = wireForm(examples);
  const browser = document.getElementById("data-records") ? await recordsBrowser() : null;
  const follow = () => {
    if (location.hash.startsWith("#ask?")) { fillFrom(location.hash); return ask(); }
    return browser?.follow(location.hash);
  };
  addEventListener("popstate", follow);
  if (!location.hash.startsWith("#ask?")) { pick(0); ask(); }
  follow();
  await showModels();
  document.documentElement.dataset.ready = "true";
}

start();
