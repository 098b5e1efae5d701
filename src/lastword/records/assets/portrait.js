// One answered item: its words, its candidates before and after, its depths, its gates, its prompt.

function portraitView(text, item) {
  const prompt = element("details", {}, element("summary", {}, "The whole prompt"), element("pre", { dir: "auto" }, text.prompt));
  const told = element("p", { class: "told" }, item.words);
  if (item.error) return [told, prompt];
  const why = element("details", { class: "why" }, element("summary", {}, "Why"), told);
  return [answersView(text, item), why, ...candidatesView(text, item), ...trajectoryView(item), ...gatesView(item), prompt];
}

// The story in two answers: the model's own, struck out where it was corrected, and what it becomes.
function answersView(text, item) {
  const [before, after] = [item.base_index, item.index].map((place) => element("span", { dir: "auto" }, text.candidates[place]));
  const stays = item.base_index === item.index;
  return element("h3", { class: "answers" }, ...(stays ? [after, element("small", {}, " is the model’s answer, and stays")] : [element("s", {}, before), " → ", after]));
}

function candidatesView(text, item) {
  const rows = text.candidates.map((candidate, i) => {
    const tags = [
      text.truthful?.[i] ? element("span", { class: "chip fixed" }, "✓ true") : null,
      i === item.base_index ? element("span", { class: "chip unchanged" }, "the model’s answer") : null,
      i === item.index ? element("span", { class: "chip changed" }, `${item.decider}’s answer`) : null,
    ];
    return element("li", { class: item.roles[i] }, element("span", { class: "key" }, element("span", { class: "letter" }, item.letters[i]), item.panels.length ? sampleOf(item, i) : null),
      element("div", { class: "text", dir: "auto" }, candidate, element("div", { class: "tags" }, tags)),
      element("div", { class: "bars" }, bar("before", item.base_probabilities[i]), bar("after", item.probabilities[i])));
  });
  const key = element("p", { class: "key-line" }, element("span", {}, "model"), element("span", { class: "after" }, item.decider));
  return [element("h4", {}, "Candidates and their probabilities"), key, element("ol", { class: "candidates" }, rows)];
}

function bar(when, share) {
  const percent = `${(100 * share).toFixed(1)}%`;
  const fill = element("div", { class: "fill" });
  fill.style.setProperty("--share", percent);
  return element("div", { class: `bar ${when}`, title: when }, element("div", { class: "track" }, fill), element("span", { class: "share" }, percent));
}

function gatesView(item) {
  if (!item.gates.length) return [];
  const rows = item.gates.map(([name, compared, holds]) => element("tr", {}, element("th", { scope: "row" }, name),
    element("td", { class: "number" }, compared),
    element("td", { class: holds === null ? "" : holds ? "held" : "failed-gate" }, holds === null ? "not asked" : holds ? "✓ holds" : "✗ does not")));
  const head = element("tr", {}, ["Gate", "Value", "Holds?"].map((name, i) => element("th", { scope: "col", class: i === 1 ? "number" : null }, name)));
  return [element("h4", {}, "Gates"), element("table", { class: "gates" }, element("thead", {}, head), element("tbody", {}, rows))];
}
