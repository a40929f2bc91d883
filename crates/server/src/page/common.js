"use strict";
const $ = id => document.getElementById(id);
const el = (tag, props, ...kids) => { const n = Object.assign(document.createElement(tag), props); n.append(...kids); return n; };
const load = (k, d) => { try { return JSON.parse(localStorage.getItem(k)) ?? d; } catch { return d; } };
const UNREACHABLE = "The server at this address does not answer. It may have been stopped.";
// Browsers have different messages for a failed connection, none of which helps the user.
const reach = promise => promise.catch(e => { throw e.name === "AbortError" ? e : Object.assign(new Error(UNREACHABLE), { unreachable: true }); });
const ask = (path, options) => reach(fetch(path, options));
const dark = matchMedia("(prefers-color-scheme: dark)"), theme = () => { document.documentElement.dataset.theme = load("ingle.theme", null) ?? (dark.matches ? "dark" : "light"); };
dark.onchange = theme;
theme();
$("theme").onclick = () => {
  // Without storage, the choice holds until the page is closed.
  const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("ingle.theme", JSON.stringify(other)); theme(); } catch { document.documentElement.dataset.theme = other; }
};
