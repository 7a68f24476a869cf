// Refresh parts of a page and add keys. Every page works without this file.
"use strict";

const QUIET_MS = 1000;
const main = document.getElementById("main");
const pulse = document.getElementById("pulse");
document.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
let pending = null;
let refreshed = Date.now();

// A part is not replaced while it has the focus, the selection or an open `details`.
function isBusy(part) {
  const selection = window.getSelection();
  return part.contains(document.activeElement) || part.querySelector("details[open]") !== null
    || (selection && !selection.isCollapsed && part.contains(selection.anchorNode));
}

async function refresh() {
  pending = null;
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      const fresh = page.getElementById(part.id);
      if (fresh && !isBusy(part) && fresh.innerHTML !== part.innerHTML) part.replaceWith(fresh);
    }
    refreshed = Date.now();
    pulse.textContent = "";
  } catch {
    const age = Math.round((Date.now() - refreshed) / 1000);
    pulse.textContent = `Connection lost; trying again. This page is ${age} s old.`;
  }
}

function refreshSoon() {
  pending ??= setTimeout(refresh, Math.max(0, refreshed + QUIET_MS - Date.now()));
}

const seconds = Number(main?.dataset.refresh);
if (seconds) setInterval(refreshSoon, 1000 * seconds);

if (main?.dataset.stream) {
  const stream = new EventSource(main.dataset.stream);
  stream.onmessage = refreshSoon;
  stream.onopen = refreshSoon;
  stream.onerror = refreshSoon;
}
document.addEventListener("visibilitychange", () => { if (!document.hidden && (seconds || main?.dataset.stream)) refreshSoon(); });

// Keys: / searches, g and a letter goes to a view, ? lists them.
let going = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const chosen = going && document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
  going = event.key === "g" && !going;
  if (chosen) chosen.click();
  else if (event.key === "/") { event.preventDefault(); document.querySelector("input[type=search]")?.focus(); }
  else if (event.key === "?") document.getElementById("keys")?.showModal();
});
