// The reference: every route can be tried where it is described.

// JSON reads better on many lines; anything else stands as it came.
function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

async function tryIt(form) {
  const { path, method, kind } = form.dataset;
  const body = form.elements.body?.value;
  const answer = await fetch(path.slice(1), { method, body, headers: kind ? { "content-type": kind } : {} }).catch(() => null);
  const told = answer ? readable(await answer.text()) : "The service does not answer.";
  form.querySelector(".came").replaceChildren(
    element("p", { class: answer?.ok ? "note" : "alert" }, answer ? `${answer.status} ${answer.statusText}` : ""),
    element("pre", { tabindex: "0", "aria-label": "Answer" }, told),
  );
}

document.querySelectorAll("form.try").forEach((form) => form.addEventListener("submit", (event) => {
  event.preventDefault();
  tryIt(form);
}));
document.documentElement.dataset.ready = "true";
