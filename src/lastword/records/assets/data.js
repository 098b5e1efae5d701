// Embedded data and the one way in which text reaches the page: as text.

const unpacked = new Map();

// The text of a compressed block, unpacked once.
function unpack(name) {
  if (!unpacked.has(name)) unpacked.set(name, inflate(document.getElementById(`data-${name}`).textContent));
  return unpacked.get(name);
}

const unpackJSON = async (name) => JSON.parse(await unpack(name));

async function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// element("p", {class: "note"}, "text", child): children that are no nodes become text.
function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const button = (text, click, attributes) => element("button", { type: "button", click, ...attributes }, text);
