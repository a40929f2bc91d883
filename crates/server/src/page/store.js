"use strict";
// Conversations: list, search, export, import and branches. They are stored in IndexedDB, since
// images exceed the limit of localStorage. A regenerated answer keeps the previous one, with all
// that followed.
const note = text => { $("live").textContent = text; };
const keep = (k, v) => { try { localStorage.setItem(k, JSON.stringify(v)); } catch { note("The browser keeps no settings: its storage is full or closed."); } };
const settings = load("ingle.settings", {});
let db = null, chats = [], chat = null;
const request = r => new Promise((yes, no) => { r.onsuccess = () => yes(r.result); r.onerror = () => no(r.error); });
async function openStore() {
  const open = indexedDB.open("ingle", 1);
  open.onupgradeneeded = () => open.result.createObjectStore("chats", { keyPath: "id" });
  db = await request(open);
  chats = await request(db.transaction("chats").objectStore("chats").getAll());
}
const store = run => db && request(run(db.transaction("chats", "readwrite").objectStore("chats"))).catch(() => showError("The browser could not keep this conversation: its storage is full or closed."));
function save(c) { c.updated = Date.now(); if (!chats.includes(c)) chats.push(c); store(s => s.put(c)); drawList(); }

// ---- Messages.
const parts = m => Array.isArray(m.content) ? m.content : [{ type: "text", text: m.content ?? "" }];
// The user's text; files attached as text have names.
const plain = m => parts(m).filter(p => p.type === "text" && !p.name).map(p => p.text).join("\n");
const images = m => parts(m).filter(p => p.type === "image_url").map(p => p.image_url.url);
const attachments = m => parts(m).filter(p => p.name || p.type === "image_url");

// ---- Branches. `versions` has the text of each version and the messages that followed it. The
// entry of the shown version, `at`, is updated only when another one is shown.
const SAID = ["content", "reasoning", "calls", "error", "info", "stopped", "cut", "tokens"];
function keepVersion(m) {
  const rest = chat.messages.splice(chat.messages.indexOf(m) + 1);
  m.versions ??= [];
  m.at ??= 0;
  m.versions[m.at] = { ...Object.fromEntries(SAID.filter(k => k in m).map(k => [k, m[k]])), rest };
}
// Adds a version of a message. The messages that followed stay with the old version.
function branch(m) {
  if (m.role === "assistant" && !m.content && !m.reasoning && !m.calls) chat.messages.splice(chat.messages.indexOf(m) + 1);
  else { keepVersion(m); m.at = m.versions.length; m.versions.push(null); }
  for (const k of SAID) delete m[k];
}
function showVersion(m, at) {
  keepVersion(m);
  for (const k of SAID) delete m[k];
  const { rest, ...said } = m.versions[at];
  Object.assign(m, said, { at });
  chat.messages.push(...rest);
  save(chat); draw();
}

// ---- The list.
const finds = (c, words) => { const text = (c.title + "\n" + c.messages.map(plain).join("\n")).toLowerCase(); return words.every(w => text.includes(w)); };
function drawList() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  chats.sort((a, b) => b.updated - a.updated);
  const small = (sign, name, onclick) => el("button", { textContent: sign, ariaLabel: name, title: name, onclick });
  $("list").replaceChildren(...chats.filter(c => finds(c, words)).map(c => {
    const open = el("button", { className: "open", textContent: c.title, title: c.title, onclick: () => show(c) });
    const rename = small("✎", "Rename " + c.title, () => { const t = prompt("Name of this conversation", c.title); if (t?.trim()) { c.title = t.trim(); save(c); } });
    const del = small("✕", "Delete " + c.title, () => { if (!confirm(`Delete “${c.title}”?`)) return; chats = chats.filter(x => x !== c); store(s => s.delete(c.id)); if (chat === c) fresh(); drawList(); });
    const li = el("li", {}, open, el("div", { className: "more" }, rename, del));
    if (c === chat) li.setAttribute("aria-current", "true");
    return li;
  }));
  if (words.length && !$("list").childNodes.length) $("list").append(el("li", { className: "quiet", textContent: "No conversation has these words." }));
}
$("search").oninput = drawList;
function show(c) { stop(); chat = c; document.body.classList.remove("open"); $("menu").ariaExpanded = "false"; draw(); drawList(); $("scroll").scrollTop = 1e9; $("box").focus(); }
const fresh = () => show({ id: crypto.randomUUID?.() ?? String(Date.now()) + Math.random(), title: "New chat", updated: Date.now(), messages: [] });

// ---- Export and import.
const pick = (accept, multiple = false) => new Promise(yes => { const i = el("input", { type: "file", accept, multiple }); i.onchange = () => yes(multiple ? [...i.files] : i.files[0]); i.click(); });
$("export").onclick = () => { const url = URL.createObjectURL(new Blob([JSON.stringify({ format: "ingle-chats", version: 1, chats }, null, 1)], { type: "application/json" })); el("a", { href: url, download: "ingle-chats.json" }).click(); setTimeout(() => URL.revokeObjectURL(url), 1000); };
const isPart = p => p?.type === "text" && typeof p.text === "string" || p?.type === "image_url" && /^data:image\//.test(p.image_url?.url);
const isSaid = (role, content) => typeof content === "string" || role === "user" && Array.isArray(content) && content.every(isPart);
const isMessage = m => m && (m.role === "user" || m.role === "assistant") && isSaid(m.role, m.content)
  && (m.versions === undefined || Array.isArray(m.versions) && m.versions.every((v, i) => v === null ? i === m.at : isSaid(m.role, v?.content ?? "") && Array.isArray(v?.rest) && v.rest.every(isMessage)));
const isChat = c => typeof c?.id === "string" && typeof c.title === "string" && Array.isArray(c.messages) && c.messages.every(isMessage);
$("import").onclick = async () => {
  const f = await pick("application/json,.json");
  let given = null;
  try { given = JSON.parse(await f.text()); } catch { }
  if (given?.format !== "ingle-chats" || !Array.isArray(given.chats)) return showError(`Import: ${f.name} is not what this page exports.`);
  if (!given.chats.every(isChat)) return showError("Import: a conversation in the file has no id, title or messages.");
  for (const c of given.chats) { chats = chats.filter(x => x.id !== c.id); chats.push(c); c.updated = Number(c.updated) || 0; await store(s => s.put(c)); }
  fresh();
};
