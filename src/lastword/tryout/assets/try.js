// The table of rows: what is shown follows from two fields; text enters as text alone.

const PAGE = 100, KINDS = {
  changed: ([, , , model, shown]) => model !== shown,
  fixed: ([, , truth, model, shown]) => shown === truth && model !== truth,
  broken: ([, , truth, model, shown]) => model === truth && shown !== truth,
  wrong: ([, , truth, , shown]) => shown !== truth,
  all: () => true,
};

const filters = document.getElementById("filters"), more = document.getElementById("more");
let rows = [], most = PAGE;

function line([id, text, truth, model, shown]) {
  const mark = (answer) => element("td", { class: answer === truth ? "held" : "failed-gate" }, answer);
  return element("tr", {}, element("td", {}, id), element("td", { class: "text", dir: "auto" }, text),
    element("td", {}, truth), mark(model), mark(shown));
}

function draw() {
  const query = filters.query.value.trim().toLowerCase();
  const found = rows.filter((row) => KINDS[filters.kind.value](row)
    && (!query || row.some((cell) => cell.toLowerCase().includes(query))));
  document.getElementById("rows").replaceChildren(...found.slice(0, most).map(line));
  document.getElementById("count").textContent = `${found.length} of ${rows.length} rows`;
  more.hidden = found.length <= most;
}

filters.addEventListener("input", () => { most = PAGE; draw(); });
filters.addEventListener("submit", (event) => event.preventDefault());
more.addEventListener("click", () => { most += PAGE; draw(); });
unpackJSON("rows").then((read) => { rows = read; draw(); });
