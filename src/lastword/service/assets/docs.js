// The reference: every route of the schema, with its body and its answer, to be tried here.

let schemas; // of the bodies and answers, by name

const nameOf = (part) => part.$ref.split("/").at(-1);
const followed = (part) => (part?.$ref ? schemas[nameOf(part)] : (part ?? {}));

// An example of a body: its own, or one of what it holds.
function exampleOf(given) {
  const part = followed(given);
  const union = part.oneOf ?? part.anyOf;
  if (union) return exampleOf(union[0]);
  if (part.examples) return part.examples[0];
  if (part.type === "array") return [exampleOf(part.items)];
  return Object.fromEntries((part.required ?? []).map((name) => [name, exampleOf(part.properties[name])]));
}

// What a value is, in words: `list of string`, `integer or null`.
function kindOf(part) {
  if (part.$ref) return nameOf(part);
  const several = part.anyOf ?? part.oneOf;
  if (several) return [...new Set(several.map(kindOf))].join(" or ");
  if (part.enum) return part.enum.join(" or ");
  if (part.type === "array") return `list of ${kindOf(part.items ?? {})}`;
  return String(part.const ?? part.type ?? "any value");
}

// Text, with what stands between backticks as code.
const coded = (text) => text.split("`").map((piece, i) => (i % 2 ? element("code", {}, piece) : piece));

function fieldsView(title, part, open) {
  const rows = Object.entries(part.properties ?? {}).map(([name, inner]) => {
    const needed = open && part.required?.includes(name) ? element("span", { class: "chip unchanged" }, "needed") : null;
    return element("div", {}, element("dt", {}, element("code", {}, name), " ", needed), element("dd", {}, element("span", { class: "note" }, kindOf(inner)), " ", coded(inner.description ?? "")));
  });
  return rows.length ? element("details", { open }, element("summary", {}, title), element("dl", { class: "fields" }, rows)) : null;
}

// JSON reads better on many lines; anything else stands as it came.
function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

async function tryIt(form, path, method, kind) {
  const body = form.elements.body?.value;
  const answer = await fetch(path.slice(1), { method, body, headers: kind ? { "content-type": kind } : {} }).catch(() => null);
  const told = answer ? readable(await answer.text()) : "The service does not answer.";
  form.querySelector(".came").replaceChildren(
    element("p", { class: answer?.ok ? "note" : "alert" }, answer ? `${answer.status} ${answer.statusText}` : ""),
    element("pre", { tabindex: "0", "aria-label": "Answer" }, told),
  );
}

function routeView(path, method, route) {
  const content = route.requestBody?.content ?? {};
  const kinds = Object.keys(content);
  const body = followed(content[kinds[0]]?.schema);
  const example = JSON.stringify(exampleOf(body), null, 2);
  const area = kinds.length ? element("label", {}, `Body, as ${kinds.join(" or ")}`, element("textarea", { name: "body", rows: Math.min(example.split("\n").length, 12), spellcheck: "false" }, example)) : null;
  const form = element("form", { class: "try" }, area, element("button", { type: "submit", class: "plain" }, "Try it"), element("div", { class: "came", role: "status" }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    tryIt(form, path, method, kinds[0]);
  });
  return element("section", { id: route.operationId, class: "route", "aria-label": `${method} ${path}` },
    element("h2", {}, element("span", { class: "method" }, method), " ", element("code", {}, path)),
    (route.description ?? "").split("\n\n").map((text) => element("p", {}, coded(text))), form,
    fieldsView("Body", body, true), fieldsView("Answer", followed(route.responses[200]?.content?.["application/json"]?.schema), false));
}

async function start() {
  const schema = await call("openapi.json");
  schemas = schema.components.schemas;
  const routes = Object.entries(schema.paths).flatMap(([path, own]) => Object.entries(own).map(([method, route]) => [path, method.toUpperCase(), route]));
  document.querySelector(".contents .column").replaceChildren(...routes.map(([path, , route]) => element("a", { href: `#${route.operationId}` }, path)));
  document.querySelector("main").replaceChildren(...routes.map((route) => routeView(...route)));
  document.getElementById("told").textContent = schema.info.description;
  document.querySelector(".version").textContent = ` ${schema.info.version}`;
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
  ready();
}

start().catch((error) => document.querySelector("main").replaceChildren(alertView(error.message)));
