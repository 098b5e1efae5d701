// Start: every worked item in its place.

async function start() {
  const items = await unpackJSON("items");
  document.querySelectorAll(".item").forEach((node, place) => node.append(...portraitView(...items[place])));
  document.documentElement.dataset.ready = "true";
}

start();
