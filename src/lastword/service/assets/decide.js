// The page Decide: questions about a text, their answers, what is behind each, and how to ask by a program.

const form = document.querySelector("#decide form");
const room = document.querySelector(".questions");
const decisions = document.getElementById("decisions");
const MOST_ROWS = 8; // options that are shown at once; the others open
const KINDS = { choice: "a choice", predicate: "yes or no", score: "a score" };
const LISTS = { choice: ["choices", "Options, one per line; add a description after |"], score: ["levels", "Levels from the lowest, one per line; add a description after |"] };

// A question as the form has it. Names are for the reader alone: no prompt has them.

function questionView(question = {}) {
  const type = element("select", { name: "type", "aria-label": "Kind of answer", change: () => show() }, Object.entries(KINDS).map(([value, name]) => element("option", { value }, name)));
  const instructions = element("input", { name: "instructions", dir: "auto" });
  const options = element("textarea", { name: "options", rows: "4", dir: "auto" });
  const listed = element("label", {}, element("span", {}), options);
  const asked = element("span", {});
  const remove = button("Remove", () => { box.remove(); number(); }, { class: "reset" });
  const box = element("fieldset", { class: "question" }, element("legend", {}, "Question"), element("div", { class: "named" }, type, remove), element("label", {}, asked, instructions), listed);
  const show = () => {
    listed.hidden = type.value === "predicate";
    if (!listed.hidden) listed.firstChild.textContent = LISTS[type.value][1];
    asked.textContent = type.value === "predicate" ? "What may hold of the text" : "Question";
  };
  type.value = question.type in KINDS ? question.type : "choice";
  instructions.value = typeof question.instructions === "string" ? question.instructions : "";
  options.value = ([question.choices, question.levels].find(Array.isArray) ?? []).map(writtenOf).join("\n");
  show();
  return box;
}

function number() {
  const boxes = [...room.children];
  boxes.forEach((box, place) => {
    box.querySelector("legend").textContent = `Question ${place + 1}`;
    box.querySelector(".reset").hidden = boxes.length === 1;
    box.querySelector(".reset").setAttribute("aria-label", `Remove question ${place + 1}`);
  });
}

// An option as a line, and back; a link may hold anything.
const writtenOf = (option) => (typeof option === "string" ? option : [option?.value, option?.description].filter((part) => typeof part === "string").join(" | "));

function optionOf(line) {
  const [value, ...description] = line.split("|").map((part) => part.trim());
  return description.length ? { value, description: description.join("|") } : value;
}

function questionOf(box) {
  const [type, instructions, options] = ["type", "instructions", "options"].map((name) => box.querySelector(`[name=${name}]`).value);
  return { type, instructions, ...(type === "predicate" ? {} : { [LISTS[type][0]]: linesOf(options).map(optionOf) }) };
}

const bodyOf = () => ({ input: form.elements.input.value, questions: [...room.children].map(questionOf) });

function fill(body) {
  form.elements.input.value = typeof body.input === "string" ? body.input : "";
  const questions = Array.isArray(body.questions) ? body.questions.filter((q) => q && typeof q === "object") : [];
  room.replaceChildren(...(questions.length ? questions : [{}]).map(questionView));
  number();
}

// The answers.

function decisionView(answer, question) {
  const { view } = answer.lastword;
  const options = optionsOf(answer, question);
  const behind = view && element("details", {}, element("summary", {}, "What is behind it, depth by depth"), portraitView(view.text, view.item));
  return element("article", { class: "item decision" }, element("p", { class: "where", dir: "auto" }, question.instructions || KINDS[answer.type]),
    element("h3", { class: "answers" }, element("span", { dir: "auto" }, saidOf(answer)), " ", element("small", {}, sureOf(answer))),
    element("p", { class: "tags" }, tagsOf(answer, options).map(([kind, text]) => element("span", { class: `chip ${kind}` }, text))),
    ...optionsView(answer.type === "choice" ? options.toSorted((a, b) => b.probability - a.probability) : options), behind);
}

// The options in their order, each with its probability, and with that which the model gives it without the text.
function optionsOf(answer, question) {
  const shares = answer.type === "predicate" ? [answer.probability, 1 - answer.probability] : answer.probabilities.map((own) => own.probability);
  const texts = answer.type === "predicate" ? ["yes", "no"] : answer.probabilities.map((own) => String(own.label ?? own.value));
  const item = answer.lastword.view?.item;
  const blind = item?.panels[0]?.blind ?? [];
  const without = blind.length === texts.length ? blind.map((steps) => steps.reduce((sum, step) => sum + step, 0) / item.panels[0].unit) : [];
  const given = question.choices ?? question.levels ?? [];
  return texts.map((text, place) => ({ text, description: given[place]?.description, probability: shares[place], without: without[place] }));
}

const percentOf = (share) => `${(100 * share).toFixed(1)}%`;

function saidOf(answer) {
  if (answer.type === "predicate") return answer.probability > 0.5 ? "yes" : "no";
  return answer.type === "score" ? answer.score.toFixed(2) : String(answer.choice ?? "none of these");
}

// How sure the answer is; of a predicate the one that is said, be it yes or no.
function sureOf(answer) {
  if (answer.type === "predicate") return `with probability ${percentOf(Math.max(answer.probability, 1 - answer.probability))}`;
  const likely = answer.probabilities.reduce((best, own) => (own.probability > best.probability ? own : best));
  if (answer.type === "choice") return `with probability ${percentOf(likely.probability)}`;
  return `to be expected, of 0 to ${answer.probabilities.length - 1}; most probable: ${likely.label}`;
}

function tagsOf(answer, options) {
  const { method, calibrated, corrected, deferred, view } = answer.lastword;
  const top = (key) => options.reduce((best, own) => (own[key] > best[key] ? own : best));
  return [
    ["unchanged", `by ${method}`],
    ["unchanged", `probabilities ${calibrated ? "calibrated" : "not calibrated"}`],
    ...(corrected && view ? [["changed", `the model alone says ${view.text.candidates[view.item.base_index]}`]] : []),
    ...(options[0].without !== undefined && top("probability") === top("without") ? [["unchanged", "the same without the text"]] : []),
    ...(deferred ? [["failed", "deferred: too unsure for the certificate"]] : []),
  ];
}

function optionsView(options) {
  const without = options[0].without === undefined ? null : element("span", {}, "the model without the text");
  const key = element("p", { class: "key-line" }, without, element("span", { class: "after" }, "the answer"));
  const rows = options.map(optionView);
  const rest = rows.slice(MOST_ROWS);
  return [key, element("ol", { class: "candidates" }, rows.slice(0, MOST_ROWS)),
    ...(rest.length ? [element("details", {}, element("summary", {}, `${rest.length} more, less probable`), element("ol", { class: "candidates" }, rest))] : [])];
}

function optionView(option) {
  const text = element("div", { class: "text", dir: "auto" }, option.text, option.description ? element("div", { class: "note" }, option.description) : null);
  return element("li", {}, text, element("div", { class: "bars" }, option.without === undefined ? null : bar("before", option.without), bar("after", option.probability)));
}

// How a program asks the same.

const QUOTE = "'\\''";
const listed = (values) => `[\n${values.map((value) => `    ${JSON.stringify(value)},\n`).join("")}]`;

function wireOf(question) {
  if (question.type === "predicate") return question;
  const [key] = LISTS[question.type];
  const name = question.type === "choice" ? "value" : "label";
  return { ...question, [key]: question[key].map((o) => (typeof o === "string" ? { [name]: o } : { [name]: o.value, description: o.description })) };
}

function callsView(sent) {
  const address = new URL("v1", location.href.split("#")[0]).href;
  const curl = `curl -s ${address}/decisions -H 'content-type: application/json' -H "authorization: Bearer $LASTWORD_TOKEN" -d '${JSON.stringify(sent).replaceAll("'", QUOTE)}'`;
  const python = ["import os", "from openai import OpenAI", "", `client = OpenAI(base_url=${JSON.stringify(address)}, api_key=os.environ.get("LASTWORD_TOKEN", "none"))`,
    `decision = client.decisions.create(model=${JSON.stringify(sent.model)}, input=${JSON.stringify(sent.input)}, questions=${listed(sent.questions)})`].join("\n");
  return [element("h3", {}, "The same from a program"), ...[["curl", curl], ["Python", python]].map(([name, code]) => codeView(name, code))];
}

function codeView(name, code) {
  const said = element("span", { role: "status", class: "note" });
  const copier = button("Copy", async () => { said.textContent = (await copy(code)) ? "copied" : "select it and copy"; }, { class: "reset", "aria-label": `Copy the ${name} call` });
  return element("div", { class: "came" }, element("p", {}, name, " ", copier, " ", said), element("pre", { tabindex: "0", "aria-label": name, role: "region" }, code));
}

// Asking.

const model = served();
model.catch(() => {}); // asking says what is wrong
let latest = 0; // an answer that comes after later questions is not shown

async function ask() {
  const { input, questions } = bodyOf();
  const turn = ++latest;
  decisions.setAttribute("aria-busy", "true");
  const sent = { model: await model, input, questions: questions.map(wireOf) };
  const [nodes, code] = await call("v1/decisions", { ...sent, include: ["view"] }).then(
    ({ answers }) => [answers.map((answer, place) => decisionView(answer, questions[place])), callsView(sent)],
    (error) => [[alertView(error.message)], []],
  );
  if (turn !== latest) return;
  decisions.replaceChildren(...nodes);
  document.getElementById("calls").replaceChildren(...code);
  decisions.setAttribute("aria-busy", "false");
}

const linkOf = () => `#decide?${encodeURIComponent(JSON.stringify(bodyOf()))}`;

function askAnew() {
  history.pushState(null, "", linkOf());
  return ask();
}

function fromLink() {
  if (!location.hash.startsWith("#decide?")) return null;
  try {
    const body = JSON.parse(decodeURIComponent(location.hash.slice("#decide?".length)));
    return body && typeof body === "object" ? body : null;
  } catch { return null; }
}

function wire(examples) {
  const { example, add, link } = form.elements;
  example.replaceChildren(element("option", { value: "" }, "your text"), ...examples.map(({ name }, place) => element("option", { value: place }, name)));
  example.addEventListener("change", () => { if (example.value !== "") { fill(examples[example.value]); askAnew(); } });
  form.addEventListener("input", (event) => { if (event.target !== example) example.value = ""; });
  add.addEventListener("click", () => { room.append(questionView()); number(); room.lastChild.querySelector("input").focus(); });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    askAnew().then(() => lead(decisions));
  });
  link.addEventListener("click", () => copyLink(linkOf(), "text and questions"));
}

async function start() {
  const examples = (await call("static/examples.json")).decide;
  wire(examples);
  const follow = () => {
    const body = fromLink();
    fill(body ?? examples[0]);
    form.elements.example.value = body ? "" : "0";
    return ask();
  };
  addEventListener("popstate", follow);
  await follow();
  ready();
}

start();
