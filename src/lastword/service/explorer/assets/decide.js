// The page Decide: questions about a text, their answers, what is behind each, and how to ask by a program.

const form = document.querySelector("#decide form");
const room = document.querySelector(".questions");
const decisions = document.getElementById("decisions");
const MOST_ROWS = 8; // options that are shown at once; the others open
const KINDS = { choice: "a choice", predicate: "yes or no", score: "a score" };
const LISTS = { choice: ["choices", "Options, one a line; after a | what one means"], score: ["levels", "Levels from the lowest, one a line; after a | what one means"] };

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

const bodyOf = () => ({ model: form.elements.model.value, input: form.elements.input.value, questions: [...room.children].map(questionOf) });

function fill(body) {
  const models = [...form.elements.model.options].map((option) => option.value);
  if (models.includes(body.model)) form.elements.model.value = body.model;
  form.elements.input.value = typeof body.input === "string" ? body.input : "";
  const questions = Array.isArray(body.questions) ? body.questions.filter((q) => q && typeof q === "object") : [];
  room.replaceChildren(...(questions.length ? questions : [{}]).map(questionView));
  number();
}

// The answers.

function decisionsView(told, body) {
  return told.answers.map((answer, place) => {
    const behind = element("details", { toggle: () => behind.open && !behind.dataset.asked && open() }, element("summary", {}, "What is behind it, depth by depth"));
    const open = async () => {
      behind.dataset.asked = "true";
      const nodes = await call("explorer/story", { ...body, place }).then((view) => portraitView(view.text, view.item), (error) => [alertView(error.message)]);
      behind.append(...nodes);
    };
    return element("article", { class: "item decision" }, element("p", { class: "where", dir: "auto" }, answer.instructions || KINDS[answer.type]),
      element("h3", { class: "answers" }, element("span", { dir: "auto" }, answer.said), " ", element("small", {}, answer.sure)),
      element("p", { class: "tags" }, answer.tags.map(([kind, text]) => element("span", { class: `chip ${kind}` }, text))),
      ...optionsView(answer), behind);
  });
}

function optionsView(answer) {
  const key = element("p", { class: "key-line" }, element("span", {}, "the model without the text"), element("span", { class: "after" }, "the answer"));
  const rows = answer.options.map(optionView);
  const rest = rows.slice(MOST_ROWS);
  return [key, element("ol", { class: "candidates" }, rows.slice(0, MOST_ROWS)),
    ...(rest.length ? [element("details", {}, element("summary", {}, `${rest.length} more, less probable`), element("ol", { class: "candidates" }, rest))] : [])];
}

function optionView(option) {
  const text = element("div", { class: "text", dir: "auto" }, option.text, option.description ? element("div", { class: "note" }, option.description) : null);
  return element("li", {}, text, element("div", { class: "bars" }, bar("before", option.without), bar("after", option.probability)));
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

function callsView(body, told) {
  if (told.served === null) return [element("p", { class: "note" }, "The service’s own routes answer by the first model alone.")];
  const sent = { model: told.served, input: body.input, questions: body.questions.map(wireOf) };
  const address = new URL("v1", location.href.split("#")[0]).href;
  const token = told.token ? " -H \"authorization: Bearer $LASTWORD_TOKEN\"" : "";
  const curl = `curl -s ${address}/decisions -H 'content-type: application/json'${token} -d '${JSON.stringify(sent).replaceAll("'", QUOTE)}'`;
  const key = told.token ? "os.environ[\"LASTWORD_TOKEN\"]" : "\"none\"";
  const python = [...(told.token ? ["import os"] : []), "from openai import OpenAI", "", `client = OpenAI(base_url=${JSON.stringify(address)}, api_key=${key})`,
    `decision = client.decisions.create(model=${JSON.stringify(sent.model)}, input=${JSON.stringify(sent.input)}, questions=${listed(sent.questions)})`].join("\n");
  return [element("h3", {}, "The same from a program"), ...[["curl", curl], ["Python", python]].map(([name, code]) => codeView(name, code))];
}

function codeView(name, code) {
  const said = element("span", { role: "status", class: "note" });
  const copier = button("Copy", async () => { said.textContent = (await copy(code)) ? "copied" : "select it and copy"; }, { class: "reset", "aria-label": `Copy the ${name} call` });
  return element("div", { class: "came" }, element("p", {}, name, " ", copier, " ", said), element("pre", { tabindex: "0", "aria-label": name, role: "region" }, code));
}

// Asking.

let latest = 0; // an answer that comes after later questions is not shown

async function ask() {
  const body = bodyOf();
  const turn = ++latest;
  const calls = document.getElementById("calls");
  decisions.setAttribute("aria-busy", "true");
  const [nodes, code] = await call("explorer/decide", body).then((told) => [decisionsView(told, body), callsView(body, told)], (error) => [[alertView(error.message)], []]);
  if (turn !== latest) return;
  decisions.replaceChildren(...nodes);
  calls.replaceChildren(...code);
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
  const { model, example, add, link } = form.elements;
  example.replaceChildren(element("option", { value: "" }, "a text of your own"), ...examples.map(({ name }, place) => element("option", { value: place }, name)));
  example.addEventListener("change", () => { if (example.value !== "") { fill({ ...examples[example.value], model: model.value }); askAnew(); } });
  model.addEventListener("change", askAnew);
  form.addEventListener("input", (event) => { if (event.target !== example && event.target !== model) example.value = ""; });
  add.addEventListener("click", () => { room.append(questionView()); number(); room.lastChild.querySelector("input").focus(); });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    askAnew().then(() => decisions.focus({ preventScroll: !matchMedia("(max-width: 52rem)").matches }));
  });
  link.addEventListener("click", async () => {
    history.replaceState(null, "", linkOf());
    document.getElementById("linked").textContent = (await copy(location.href)) ? "The link is copied; it holds text and questions." : "The address of this page now holds text and questions.";
  });
}

async function start() {
  const examples = await unpackJSON("examples");
  wire(examples);
  const follow = () => {
    const body = fromLink();
    fill(body ?? examples[0]);
    form.elements.example.value = body ? "" : "0";
    return ask();
  };
  addEventListener("popstate", follow);
  await follow();
  document.documentElement.dataset.ready = "true";
}

start();
