// Start: tables at once, then items from their index.

async function start() {
  wireTables();
  const items = await unpackJSON("items");
  const browser = new Browser(items, async (entry) => {
    const [cell, texts] = await Promise.all([unpackJSON(`cell-${entry.cell}`), unpackJSON(`texts-${items.texts[entry.text][1]}`)]);
    return [texts[entry.text], cell[entry.item]];
  });
  document.querySelectorAll(".browse").forEach((node) => node.addEventListener("click", () => browser.select(items.cells[node.dataset.cell])));
  addEventListener("popstate", () => browser.follow(location.hash));
  browser.follow(location.hash);
  // The browser went to the address before there was room for the figures.
  document.querySelector(`section[id="${CSS.escape(location.hash.slice(1))}"]`)?.scrollIntoView({ behavior: "instant" });
  document.documentElement.dataset.ready = "true";
}

start();
