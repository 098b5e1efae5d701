// The item browser: a list that filters, and one item told in full.

const PAGE = 60;

// An item is one that counts for MC1, here as in every other number of the page; others are named beside.
const BESIDE = { MC1: "items", "MC2 alone": "for MC2 alone", "no labels": "without labels", failed: "failed" };
const FILTERS = ["benchmark", "model", "outcome", "operator", "regime", "judged"];

const tally = (entries) => Object.fromEntries(Object.keys(BESIDE).map((metric) => [metric, entries.filter((entry) => entry.judged === metric).length]));

function countLine(found, all) {
  const number = (n) => n.toLocaleString("en");
  const parts = Object.entries(BESIDE).filter(([metric]) => all[metric]);
  return parts.map(([metric, name]) => `${number(found[metric])} of ${number(all[metric])} ${name}`).join(" · ");
}

class Browser {
  // texts: [id, benchmark, question]; cells: {model, benchmark, items: [text, regime, operator,
  // outcome, metric that counts it]}. `load` gives an entry's text and its item.
  constructor({ texts, cells }, load) {
    Object.assign(this, { texts, load, shown: 0, found: [] });
    this.root = document.getElementById("items");
    this.form = this.root.querySelector(".filters");
    this.list = this.root.querySelector(".list ol");
    this.more = this.root.querySelector(".more");
    this.article = this.root.querySelector(".item");
    this.entries = cells.flatMap(({ model, benchmark, items }, cell) => items.map(
      ([text, regime, operator, outcome, judged], item) => ({ cell, item, text, model, benchmark, regime, operator, outcome, judged })));
    this.totals = tally(this.entries);
    this.haystack = texts.map(([id, , question]) => `${id} ${question}`.toLowerCase());
    this.fill();
    this.more.addEventListener("click", () => this.show());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", () => this.filter());
    this.filter();
  }

  fill() {
    for (const name of FILTERS) {
      const values = [...new Set(this.entries.map((entry) => entry[name]))].filter(Boolean);
      this.form.elements[name].append(element("option", { value: "" }, "all"), ...values.map((value) => element("option", { value }, value)));
    }
  }

  filter() {
    const { search, ...selects } = this.form.elements;
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = FILTERS.map((name) => [name, selects[name].value]).filter(([, value]) => value !== "");
    const matches = this.haystack.map((text) => words.every((word) => text.includes(word)));
    this.found = this.entries.filter((entry) => matches[entry.text] && wanted.every(([name, value]) => entry[name] === value));
    this.root.querySelector(".count").textContent = countLine(tally(this.found), this.totals);
    this.list.replaceChildren(...(this.found.length ? [] : [element("li", { class: "empty" }, "No item matches.")]));
    this.shown = 0;
    this.show();
  }

  show() {
    this.list.append(...this.found.slice(this.shown, this.shown + PAGE).map((entry) => this.row(entry)));
    this.shown = Math.min(this.shown + PAGE, this.found.length);
    this.more.hidden = this.shown >= this.found.length;
  }

  row(entry) {
    const [id, , question] = this.texts[entry.text];
    return element("li", {}, element("button", { type: "button", click: () => this.open(entry), "data-entry": `${entry.cell}-${entry.item}` },
      element("span", { class: "question", dir: "auto" }, question),
      element("span", { class: "where" }, this.chip(entry), ` ${entry.model} · ${entry.benchmark} ${id}`)));
  }

  chip(entry) {
    return element("span", { class: `chip ${entry.outcome}` }, entry.outcome);
  }

  // Opens an item; its address is kept, so that the back button and a copied address work.
  open(entry) {
    history.pushState(null, "", `#item-${entry.cell}-${entry.item}`);
    return this.read(entry);
  }

  async read(entry) {
    this.root.querySelector(".browser").classList.add("reading");
    this.list.querySelectorAll("[aria-current]").forEach((node) => node.removeAttribute("aria-current"));
    this.list.querySelector(`[data-entry="${entry.cell}-${entry.item}"]`)?.setAttribute("aria-current", "true");
    const [text, item] = await this.load(entry);
    this.article.replaceChildren(...itemView(this, entry, text, item));
    this.article.focus({ preventScroll: true });
    this.article.scrollIntoView({ block: "nearest" });
    if (matchMedia("(max-width: 52rem)").matches) this.root.querySelector(".browser").scrollIntoView();
  }

  close() {
    this.root.querySelector(".browser").classList.remove("reading");
  }

  siblings(entry) {
    return this.entries.filter((other) => other.text === entry.text && other.cell !== entry.cell);
  }

  follow(hash) {
    const address = hash.match(/^#item-(\d+)-(\d+)$/);
    if (!address) return this.close();
    const [cell, item] = address.slice(1).map(Number);
    const entry = this.entries.find((other) => other.cell === cell && other.item === item);
    if (entry) this.read(entry);
  }

  select({ model, benchmark }) {
    this.form.reset();
    this.form.elements.model.value = model;
    this.form.elements.benchmark.value = benchmark;
    this.filter();
    this.close();
    this.root.scrollIntoView();
  }
}

function itemView(browser, entry, text, item) {
  const [id, , question] = browser.texts[entry.text];
  const where = `${entry.model} · ${entry.benchmark} ${id}`;
  const back = button("← Back to the list", () => { history.pushState(null, "", "#items"); browser.close(); }, { class: "back" });
  const head = [back, element("p", { class: "where" }, browser.chip(entry), ` ${where}`), element("h3", { dir: "auto" }, question)];
  return [...head, ...portraitView(text, item), ...siblingsView(browser, entry)];
}

function siblingsView(browser, entry) {
  const others = browser.siblings(entry);
  if (!others.length) return [];
  const links = others.map((other) => element("button", { type: "button", click: () => browser.open(other) }, browser.chip(other), ` ${other.model}`));
  return [element("h4", {}, "The same item on other models"), element("div", { class: "siblings" }, links)];
}
