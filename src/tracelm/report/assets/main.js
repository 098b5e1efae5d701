// Start: tables at once, figures when they come into view, items from their index.

async function start() {
  wireTables();
  unpackJSON("figures").then(watchPlots);
  const browser = new Browser(await unpackJSON("items"));
  document.querySelectorAll(".browse").forEach((node) => node.addEventListener("click", () => browser.select(node.dataset.model, node.dataset.benchmark)));
  addEventListener("popstate", () => browser.follow(location.hash));
  browser.follow(location.hash);
  document.documentElement.dataset.ready = "true";
}

start();
