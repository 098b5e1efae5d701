// Start: every worked item in its place.

async function start() {
  watchPlots({}); // drawn again when the colour scheme changes
  const items = await unpackJSON("items");
  document.querySelectorAll(".item").forEach((node, place) => node.append(...portraitView(...items[place])));
  document.documentElement.dataset.ready = "true";
}

start();
