// The explorer: a question, its answer, and what is served.

const form = document.querySelector("#ask form");
const article = document.getElementById("answer");

// The question as it stands in the form, and the form as a link tells it.
function questionOf() {
  const { prompt, candidates, blind } = form.elements;
  const question = { prompt: prompt.value, candidates: linesOf(candidates.value) };
  if (blind.value.trim()) question.blind_prompt = blind.value;
  if (form.truthful?.length === question.candidates.length) question.truthful = form.truthful;
  return question;
}

function linkOf(question) {
  const words = new URLSearchParams({ prompt: question.prompt });
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
  fill({ prompt: words.get("prompt") ?? "", candidates, blind_prompt: words.get("blind"), truthful: places.length ? candidates.map((_, place) => places.includes(place)) : null });
}

let latest = 0; // an answer that comes after a later question is not shown

// What was asked has an address of its own, so that the back button leads to the question before.
function askAnew() {
  history.pushState(null, "", linkOf(questionOf()));
  return ask();
}

async function ask() {
  const turn = ++latest;
  article.setAttribute("aria-busy", "true");
  const nodes = await call("v1/correct", { ...questionOf(), view: true }).then(({ view }) => portraitView(view.text, view.item), (error) => [alertView(error.message)]);
  if (turn !== latest) return;
  article.replaceChildren(...nodes);
  article.setAttribute("aria-busy", "false");
}

// What is served, what is certified of it, and whether that holds.

function modelView(name, model) {
  const { invariant, theta, certificate, oversight } = model;
  const facts = Object.entries({
    model: name,
    family: model.model_type,
    blocks: model.depth,
    "I(M)": `${Number(invariant.toPrecision(4))}, ${invariant > theta.tau_I ? "above" : "at most"} ${theta.tau_I}`,
    Θ: model.outside_paper ? "outside the paper’s range" : "as frozen",
    "runs in": model.dtype,
  }).map(([key, value]) => element("div", {}, element("dt", {}, key), element("dd", {}, String(value))));
  const alerts = oversight ? alertsOf(oversight) : [];
  const told = [...certifiedOf(certificate), ...(oversight ? [`Labels that came back: ${oversight.monitors.breaks.labelled}, ${oversight.monitors.breaks.broken} of them on answers that correction broke.${alerts.length ? "" : " No alarm, and no drift is seen."}`] : []),
    ...(model.shadow ? ["Shadow: answers are the model’s own choice, here too."] : [])];
  return element("div", { class: "model" }, element("dl", { class: "facts" }, facts), alerts.map(alertView), told.map((line) => element("p", {}, line)));
}

function certifiedOf(certificate) {
  if (!certificate) return ["Nothing is certified: every override is shown, with no promise."];
  const { date, policy, terms, counts } = certificate;
  const through = policy.operators.length ? `${policy.operators.join(" and ")} may override, with a margin of at least ${policy.margin} nats` : "nothing may override";
  const promised = terms.promise === "breaks" ? `at most ${terms.alpha} of all answers are broken` : "more answers are fixed than broken";
  return [`Certified ${date}: ${through}.`, `Promised: ${promised}, but for a chance of ${terms.delta}. Of ${counts.items} labelled items ${counts.fixed} were fixed and ${counts.broken} broken.`];
}

function alertsOf({ monitors: { breaks, errors }, drifted }) {
  return [
    ...(breaks.alarm ? ["Alarm: more was broken than was promised."] : []),
    ...(errors?.alarm ? ["Alarm: more of the answers given are wrong than was promised."] : []),
    ...(breaks.slipping ? ["Slipping: of late more seems to be broken than may be."] : []),
    ...(errors?.slipping ? ["Slipping: of late more answers given seem to be wrong than may be."] : []),
    ...(drifted.length ? [`What is asked has drifted: ${drifted.join(", ")}.`] : []),
  ];
}

// The examples came out as they say with the models that they are known of.
function examplesOf(known, name) {
  const familiar = Object.keys(known).includes(name);
  const own = familiar ? known[name] : known[name.startsWith("lastword/demo") ? "lastword/demo-organism" : "lastword/smollm2-135m"];
  return own.map((example) => ({ ...example, name: familiar ? `${example.outcome}: ${example.question}` : example.question }));
}

function wire(examples) {
  const { example, candidates, link } = form.elements;
  example.replaceChildren(element("option", { value: "" }, "your question"), ...examples.map(({ name }, place) => element("option", { value: place }, name)));
  example.addEventListener("change", () => { if (example.value !== "") { fill(examples[example.value]); askAnew(); } });
  candidates.addEventListener("input", () => { form.truthful = null; });
  form.addEventListener("input", (event) => { if (event.target.tagName === "TEXTAREA") example.value = ""; });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    askAnew().then(() => lead(article));
  });
  link.addEventListener("click", () => copyLink(linkOf(questionOf()), "the whole question"));
}

async function start() {
  const [known, name, model] = await Promise.all([call("static/examples.json"), served(), call("v1/model")]);
  const examples = examplesOf(known.ask, name);
  wire(examples);
  document.querySelector(".version").textContent = ` ${model.version}`;
  document.querySelector(".models").replaceChildren(modelView(name, model));
  const follow = () => {
    const isLink = location.hash.startsWith("#ask?");
    if (isLink) fillFrom(location.hash);
    else if (!form.elements.prompt.value) { fill(examples[0]); form.elements.example.value = "0"; }
    return ask();
  };
  addEventListener("popstate", () => location.hash.startsWith("#ask?") && follow());
  await follow();
  ready();
}

start().catch((error) => article.replaceChildren(alertView(error.message)));
