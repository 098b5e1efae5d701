// What all pages of the service do: ask it, and say what is wrong.

async function call(path, body) {
  const request = body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, request).catch(() => null);
  const told = await answer?.json().catch(() => null);
  if (!answer?.ok) throw new Error(told?.error?.message ?? "The service does not answer.");
  return told;
}

const alertView = (message) => element("p", { class: "alert", role: "alert" }, message);
const ready = () => { document.documentElement.dataset.ready = "true"; };
