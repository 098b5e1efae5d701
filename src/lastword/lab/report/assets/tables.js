// Tables that sort by a heading, and cells that open.

function sortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, place) => {
    heading.querySelector("button").addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      table.append(...sorted([...table.tBodies], place, heading.classList.contains("number"), down));
    });
  });
}

// A row is a body of its own, so that its detail moves with it. What has no value comes last.
function sorted(bodies, place, numeric, down) {
  const key = (body) => body.rows[0].cells[place].dataset.value;
  const compare = numeric ? (a, b) => Number(a) - Number(b) : (a, b) => a.localeCompare(b, undefined, { numeric: true });
  const known = bodies.filter((body) => key(body) !== "");
  known.sort((a, b) => (down ? -1 : 1) * compare(key(a), key(b)));
  return [...known, ...bodies.filter((body) => key(body) === "")];
}

function openCell(place, open = true) {
  const [row, detail] = document.getElementById(`cell-${place}`).rows;
  row.querySelector(".opener").setAttribute("aria-expanded", String(open));
  detail.hidden = !open;
  return row;
}

function wireTables() {
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll(".cells tbody").forEach((body) => {
    const place = body.id.replace("cell-", "");
    body.rows[0].addEventListener("click", () => openCell(place, body.rows[1].hidden));
  });
}
