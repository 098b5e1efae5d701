// The labelling page: one text at a time, by keyboard or by hand. All text is set as text.

const at = (id) => document.getElementById(id);
const KEYS = 9; // options that have a key
const SHORT = 70; // words of a text that is shown whole
let state = null, shown = null, busy = false, listed = "";

async function call(path, body) {
  const request = body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, request).catch(() => null);
  const value = await answer?.json().catch(() => null);
  if (answer?.ok) return value;
  const stopped = "The server has stopped. Start the same command again, and open the address that it prints. Your labels are saved.";
  const error = new Error(value?.error?.message ?? stopped);
  error.again = answer?.status === 409;
  throw error;
}

// Sends one request at a time: a key that is pressed meanwhile does nothing.
async function send(path, body, said = () => "") {
  if (busy) return;
  busy = true;
  try {
    show(await call(path, body));
    at("said").textContent = said();
    at("alert").textContent = "";
  } catch (error) {
    at("alert").textContent = error.message;
    if (error.again) show(await call("state").catch(() => state));
  } finally {
    busy = false;
  }
}

const undoes = (done) => (shown ? `${done}. Backspace undoes it.` : `${done}.`); // a complete round is in use
const label = (name) => shown && send("label", { row: shown.row, label: name }, () => undoes(`Labelled ${name}`));
const skip = () => shown && send("label", { row: shown.row, label: null }, () => undoes("Skipped"));
const undo = () => shown && send("undo", {}, () => (state.undone ? "Undone." : "There is nothing to undo in this round."));

function show(next) {
  state = next;
  at("instructions").textContent = state.instructions || "Which option is right?";
  showText(next.shown);
  showProgress();
  showVerdict();
}

function showText(next) {
  const changed = next?.row !== shown?.row;
  shown = next;
  at("labelling").hidden = !shown;
  if (!shown) return;
  listOptions();
  if (!changed) return;
  at("text").textContent = shown.text;
  fold(shown.text.split(/\s+/).length > SHORT || shown.text.length > 12 * SHORT);
  if (at("search").value) { at("search").value = ""; listOptions(); }
  scrollTo(0, 0);
}

function fold(long) {
  at("fold").hidden = !long;
  setFolded(long);
}

function setFolded(folded) {
  at("text").classList.toggle("folded", folded);
  at("fold").setAttribute("aria-expanded", String(!folded));
  at("fold").replaceChildren(element("kbd", {}, "F"), folded ? " Show the whole text" : " Fold the text");
}

function matches() {
  const query = at("search").value.trim().toLowerCase();
  return state.options.filter((option) => option.name.toLowerCase().includes(query));
}

function listOptions() {
  at("searching").hidden = state.options.length <= KEYS;
  const options = matches();
  const names = JSON.stringify(options);
  if (names === listed) return;
  listed = names;
  at("options").replaceChildren(...options.map((option, place) => element("li", {}, element("button", { type: "button", click: () => label(option.name) },
    place < KEYS ? element("kbd", { "aria-hidden": "true" }, String(place + 1)) : element("span", {}),
    element("span", { class: "name", dir: "auto" }, option.name),
    option.description ? element("span", { class: "meaning", dir: "auto" }, option.description) : null))));
}

function showProgress() {
  const { ended } = state;
  const purpose = state.round === 1 ? "these train the probe" : "these prove it";
  at("going").hidden = Boolean(ended);
  at("bar").max = state.rows || 1;
  at("bar").value = state.done;
  at("progress").textContent = `${state.done} of ${state.rows}: ${purpose}`;
  at("waiting").textContent = shown || ended ? "" : `${state.doing} …`;
}

function showVerdict() {
  const ready = state.ended || (state.round > 2 && state.words); // a look without proof: more rows are offered
  const appears = ready && at("verdict").hidden;
  at("verdict").hidden = !ready;
  at("words").textContent = state.words;
  at("commands").hidden = !state.ended || !state.commands.length;
  at("commands").textContent = state.commands.join("\n");
  at("result").hidden = !state.result;
  if (appears) at("words").focus();
}

document.addEventListener("keydown", (event) => {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || !shown) return;
  const searches = event.target === at("search");
  const act = searches ? { Enter: () => matches().length && label(matches()[0].name), Escape: () => at("search").blur() }[event.key] : keyOf(event.key);
  if (!act) return;
  event.preventDefault();
  act();
});

function keyOf(key) {
  if (/^[1-9]$/.test(key)) return matches()[key - 1] && (() => label(matches()[key - 1].name));
  const keys = { backspace: undo, s: skip, f: at("fold").hidden ? null : () => at("fold").click(), "/": at("searching").hidden ? null : () => at("search").focus() };
  return keys[key.toLowerCase()];
}

at("undo").addEventListener("click", undo);
at("skip").addEventListener("click", skip);
at("fold").addEventListener("click", () => setFolded(!at("text").classList.contains("folded")));
at("search").addEventListener("input", listOptions);

// Asks for the progress, and for a text while there is none.
async function look() {
  if (!busy) {
    const waits = !shown;
    const alert = (message) => { if (waits) at("alert").textContent = message; };
    await call("state").then((next) => { if (!busy) { show(next); alert(""); } }, (error) => alert(error.message));
  }
  document.documentElement.dataset.ready = "true";
  const slow = shown || (state?.ended && state?.result);
  setTimeout(look, slow ? 5000 : 700);
}

look();
