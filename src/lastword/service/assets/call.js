// What all pages of the service do: ask it, and say what is wrong.

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
const served = async () => (await call("v1/models")).data[0].id;
const ready = () => { document.documentElement.dataset.ready = "true"; };

// What stands in the form may be taken from an address, and be put into one.
async function copyLink(link, what) {
  history.replaceState(null, "", link);
  document.getElementById("linked").textContent = (await copy(location.href)) ? `The link is copied; it holds ${what}.` : `The address of this page now holds ${what}.`;
}

// On a phone the answer stands below the form: nothing jumps there by itself.
const lead = (node) => node.focus({ preventScroll: !matchMedia("(max-width: 52rem)").matches });
