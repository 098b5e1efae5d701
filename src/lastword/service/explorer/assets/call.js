// What both of the explorer's pages do: ask the service, and say what is wrong.

async function call(path, body) {
  const request = body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, request).catch(() => null);
  const told = await answer?.json().catch(() => null);
  if (!answer?.ok) throw new Error(told?.error?.message ?? "The service does not answer.");
  return told;
}

const linesOf = (text) => text.split("\n").filter((line) => line.trim());
const alertView = (message) => element("p", { class: "alert", role: "alert" }, message);
const copy = async (text) => Boolean(await navigator.clipboard?.writeText(text).then(() => true, () => false));
