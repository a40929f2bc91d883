"use strict";
// ---- The conversation.
function draw() {
  const empty = el("div", { className: "empty" }, el("h2", { textContent: "What shall we talk about?" }), el("p", { className: "quiet", textContent: "Conversations stay in this browser." }));
  $("talk").replaceChildren(...(chat.messages.length ? chat.messages.map(turn) : [empty]));
  drawContext();
}
const act = (name, onclick) => el("button", { type: "button", textContent: name, onclick });
function versions(m) {
  const n = m.versions?.length ?? 1, at = m.at ?? 0, to = i => () => { if (!busy) showVersion(m, i); };
  const step = (sign, ariaLabel, i) => el("button", { type: "button", textContent: sign, ariaLabel, disabled: i < 0 || i >= n, onclick: to(i) });
  return n < 2 ? [] : [el("span", { className: "versions" }, step("‹", "The version before", at - 1), el("span", { textContent: `${at + 1} of ${n}` }), step("›", "The next version", at + 1))];
}
function turn(m) {
  const body = el("div", { className: "body" }), acts = el("div", { className: "acts" }), node = el("div", { className: "turn " + m.role }, body, acts);
  const remove = act("Delete", () => { if (busy) return; chat.messages.splice(chat.messages.indexOf(m), 1); save(chat); draw(); });
  if (m.role === "user") {
    const shown = p => p.name ? el("span", { className: "file", textContent: p.name, title: p.text.slice(0, 2000) }) : el("img", { src: p.image_url.url, alt: "Attached image" });
    body.append(...attachments(m).map(shown), plain(m));
    acts.append(...versions(m), act("Edit", () => edit(m, node)), act("Copy", e => copyText(plain(m), e.target)), remove);
    return node;
  }
  const think = el("div"), details = el("details", { className: "think", hidden: true }, el("summary", { textContent: "Reasoning" }), think);
  const writer = new Writer(), calls = el("div"), error = el("div", { className: "error", hidden: true }), info = el("span", { className: "quiet" });
  body.append(details, writer.node, calls, error);
  const paint = () => {
    details.hidden = !m.reasoning; think.textContent = m.reasoning || "";
    writer.set(m.content || "");
    calls.replaceChildren(...(m.calls || []).map(c => block("```json\n" + c.name + " " + c.arguments + "\n```")));
    error.hidden = !m.error; error.textContent = m.error || "";
    info.textContent = m.info || "";
    node.classList.toggle("wait", !!m.live && !m.content && !m.reasoning && !m.calls?.length);
  };
  acts.append(...versions(m), act("Copy", e => copyText(m.content, e.target)), act("Retry", () => { if (!busy) { branch(m); answer(m); } }), remove, info);
  paint(); m.live && (paintLive = paint);
  return node;
}
let paintLive = null;
function edit(m, node) {
  if (busy) return;
  const area = el("textarea", { className: "edit", value: plain(m), rows: Math.min(12, plain(m).split("\n").length + 1), ariaLabel: "Edit message" });
  const done = () => { const text = area.value.trim(), files = attachments(m); if (!text) return; branch(m); m.content = contentOf(text, files); answer(); };
  area.onkeydown = e => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); done(); } if (e.key === "Escape") { e.stopPropagation(); draw(); $("box").focus(); } };
  node.replaceChildren(area, el("div", { className: "acts" }, act("Send", done), act("Cancel", draw)));
  area.focus();
}
function showError(text) { $("talk").append(el("div", { className: "error", textContent: text })); note(text); }

// ---- The server.
let models = [], busy = null, isLost = false;
const headers = () => settings.key ? { authorization: "Bearer " + settings.key } : {};
async function failure(r) { try { const e = (await r.json()).error; return e?.message || JSON.stringify(e); } catch { return `The server answered ${r.status} ${r.statusText}.`; } }
function askKey() { if (!$("ask").open) { $("key").value = ""; $("ask").showModal(); } }
$("ask").onclose = () => { settings.key = $("key").value.trim() || settings.key; keep("ingle.settings", settings); refresh(); };
// An adapter can do what its model can.
const capable = m => m.capabilities ?? models.find(p => p.id === m.parent)?.capabilities ?? (m.meta?.n_embd && !m.meta.n_vocab ? [] : ["chat"]);
const can = (m, what) => capable(m).includes(what);
const isBase = m => can(m, "completion") && !can(m, "chat");
const chosen = () => models.find(m => m.id === $("model").value);
// A model is shown by the end of its path, unless another path has the same end.
function label(id, ids) {
  const end = id.split("/").pop();
  return id.startsWith("/") && ids.filter(other => other.split("/").pop() === end).length === 1 ? end : id;
}
function drawState(text, isError = false) { $("state").textContent = text; $("state").className = isError ? "error" : "quiet"; }
// Show that the server does not answer, and poll until it does.
function lose() {
  if (!isLost) note(UNREACHABLE);
  isLost = true;
  drawState(UNREACHABLE, true);
  clearTimeout(refresh.timer); refresh.timer = setTimeout(refresh, 2000);
}
async function refresh() {
  let wait = 15000;
  try {
    const health = await ask("/health").then(r => r.status);
    const r = await ask("/v1/models", { headers: headers() });
    if (r.status === 401) { drawState("needs a key"); return askKey(); }
    if (!r.ok) throw new Error(await failure(r));
    models = (await r.json()).data;
    drawModels();
    const ids = [...$("model").options].map(o => o.value), wasLost = isLost;
    isLost = false;
    drawState(health === 503 ? "loading" : !ids.length ? "no model that writes text is served" : wasLost ? "The server answers again." : "");
    if (wasLost) note("The server answers again.");
    if (health === 503) wait = 1500;
    capabilities();
  } catch (e) {
    if (e.unreachable) return lose();
    drawState(e.message, true); wait = 3000;
  }
  clearTimeout(refresh.timer); refresh.timer = setTimeout(refresh, wait);
}
function drawModels() {
  const groups = [["Chat", models.filter(m => can(m, "chat"))], ["Base models, which continue a text", models.filter(isBase)]].filter(([, list]) => list.length);
  const ids = groups.flatMap(([, list]) => list.map(m => m.id)), want = $("model").value || settings.model;
  if (String(ids) !== String([...$("model").options].map(o => o.value))) {
    const option = m => el("option", { value: m.id, textContent: label(m.id, ids), title: m.id });
    $("model").replaceChildren(...groups.flatMap(([name, list]) => groups[0][0] === "Chat" && groups.length === 1 ? list.map(option) : [el("optgroup", { label: name }, ...list.map(option))]));
  }
  if (ids.includes(want)) $("model").value = want;
}
function capabilities() {
  const m = chosen(), hears = models.some(m => can(m, "transcription"));
  $("image").hidden = !m || !can(m, "vision"); $("audio").hidden = !hears; $("mic").hidden = !hears || !navigator.mediaDevices;
  $("box").placeholder = m && isBase(m) ? "Write the beginning of a text" : "Write a message";
  document.title = m ? label(m.id, models.map(m => m.id)) + " · Ingle" : "Ingle";
  drawContext();
}
// Share of the model's context that the conversation uses.
function drawContext() {
  const used = chat?.messages.findLast(m => m.tokens)?.tokens, most = chosen()?.max_model_len, n = x => x.toLocaleString("en");
  $("context").textContent = used ? most ? `${n(used)} of ${n(most)} tokens of context` : `${n(used)} tokens` : "Enter sends, Shift+Enter starts a line";
  $("context").classList.toggle("hint", !used);
}
function parameters(isRaw) {
  const out = {};
  for (const k of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) if (settings[k] !== undefined && settings[k] !== "") out[k] = Number(settings[k]);
  const stops = (settings.stop || "").split("\n").filter(Boolean);
  if (stops.length) out.stop = stops;
  // Base models seldom end by themselves.
  if (isRaw) out.max_tokens ??= 256;
  const schema = settings.schema?.trim() && JSON.parse(settings.schema);
  if (schema && isRaw) out.json_schema = schema;
  if (schema && !isRaw) out.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  if (settings.thinking && !isRaw) out.enable_thinking = settings.thinking === "on";
  return out;
}
const contentOf = (text, files) => files.length ? [...files, { type: "text", text }] : text;
function push(text, files) {
  if (!chat.messages.length) chat.title = text.slice(0, 60).split("\n")[0] || files[0]?.name || "Image";
  chat.messages.push({ role: "user", content: contentOf(text, files) });
  answer();
}
function sent(m) {
  const file = p => { const ticks = "`".repeat(Math.max(3, ...(p.text.match(/`+/g) ?? []).map(t => t.length + 1))); return { type: "text", text: `${p.name}:\n${ticks}\n${p.text}\n${ticks}\n` }; };
  const all = parts(m).map(p => p.name ? file(p) : p);
  return { role: m.role, content: all.every(p => p.type === "text") ? all.map(p => p.text).join("\n") : all };
}
// Path and body of the request for a conversation.
function asked(before) {
  const isRaw = isBase(chosen()), all = { model: $("model").value, stream: true, stream_options: { include_usage: true }, timings_per_token: true, ...parameters(isRaw) };
  if (isRaw) return ["/v1/completions", { ...all, prompt: before.map(m => sent(m).content).join("") }];
  const messages = before.map(sent), system = (chat.system || settings.system || "").trim();
  if (system) messages.unshift({ role: "system", content: system });
  return ["/v1/chat/completions", { ...all, messages }];
}
// Data of a response's events, without the last, `[DONE]`.
async function* events(r) {
  const reader = r.body.pipeThrough(new TextDecoderStream()).getReader(); let rest = "";
  for (;;) {
    const { done, value } = await reach(reader.read());
    if (done) throw new Error("The answer was cut: the connection ended before it did.");
    rest += value;
    for (let at; (at = rest.search(/\r?\n/)) >= 0;) {
      const line = rest.slice(0, at); rest = rest.slice(at + (rest[at] === "\r" ? 2 : 1));
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message || JSON.stringify(event.error));
      yield event;
    }
  }
}
// Figures of an answer in words. A stopped answer has some too, although the server sends no usage.
function figures(m, usage, timings, first) {
  const n = usage?.completion_tokens ?? timings?.predicted_n, rate = timings?.predicted_per_second, words = [];
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n, prompt = usage?.prompt_tokens ?? (timings && timings.prompt_n + (timings.cache_n ?? 0));
  if (rate && n > 1) words.push(rate.toFixed(1) + " tokens/s");
  if (n !== undefined) words.push(n === 1 ? "1 token" : n + " tokens");
  if (prompt && !m.live) words.push(`${prompt} in prompt` + (cached ? `, ${cached} cached` : ""));
  if (n !== undefined && prompt) m.tokens = prompt + n;
  if (first && !m.live) words.push((first / 1000).toFixed(2) + " s to first");
  if (m.stopped) words.push("stopped");
  if (m.cut) words.push("cut at max tokens");
  return words.join(" · ");
}
async function answer(again) {
  if (busy) return;
  const c = chat, m = Object.assign(again ?? { role: "assistant" }, { content: "", reasoning: "", live: true });
  if (!again) c.messages.push(m);
  const before = c.messages.slice(0, c.messages.indexOf(m)).filter(m => m.role === "user" || m.content);
  save(c); draw(); $("scroll").scrollTop = 1e9;
  const control = new AbortController(); busy = control; button();
  let queued = false, usage = null, timings = null, first = 0;
  const begun = performance.now();
  const paint = () => { queued = false; const s = $("scroll"), end = s.scrollHeight - s.scrollTop - s.clientHeight < 60; if (c === chat) paintLive?.(); if (end) s.scrollTop = 1e9; };
  const later = () => { if (!queued) { queued = true; requestAnimationFrame(paint); } };
  try {
    const [path, body] = asked(before);
    const r = await ask(path, { method: "POST", signal: control.signal, headers: { "content-type": "application/json", ...headers() }, body: JSON.stringify(body) });
    if (r.status === 401) askKey();
    if (!r.ok) throw new Error(await failure(r));
    for await (const event of events(r)) {
      usage = event.usage || usage; timings = event.timings || timings;
      const choice = event.choices?.[0], d = choice?.delta || { content: choice?.text };
      if (d.content || d.reasoning_content || d.tool_calls) first ||= performance.now() - begun;
      m.content += d.content || ""; m.reasoning += d.reasoning_content || "";
      for (const t of d.tool_calls || []) { const call = ((m.calls ||= [])[t.index] ||= { name: "", arguments: "" }); call.name += t.function?.name || ""; call.arguments += t.function?.arguments || ""; }
      if (choice?.finish_reason === "length") m.cut = true;
      m.info = figures(m, usage, timings, first);
      later();
    }
  } catch (e) {
    if (e.name === "AbortError") m.stopped = true; else m.error = e.message;
    if (e.unreachable) lose();
  }
  delete m.live;
  m.info = figures(m, usage, timings, first);
  paint(); paintLive = null; busy = null; button(); drawContext();
  if (chats.includes(c)) save(c);
  note(m.error ? m.error : m.stopped ? "Stopped" : m.content);
}
function stop() { busy?.abort(); }
function button() { $("send").textContent = busy ? "Stop" : "Send"; $("send").ariaLabel = busy ? "Stop the answer" : "Send"; }

// ---- Files, images and speech.
const MOST_TEXT = 512 << 10;
let attached = [];
function drawFiles() {
  const shown = p => p.name ? el("span", { className: "file", textContent: p.name + " ✕" }) : el("img", { src: p.image_url.url, alt: "" });
  $("files").replaceChildren(...attached.map((p, i) => el("button", { type: "button", ariaLabel: "Remove " + (p.name ?? "image"), onclick: () => { attached.splice(i, 1); drawFiles(); $("box").focus(); } }, shown(p))));
}
const dataUrl = f => new Promise((yes, no) => { const r = new FileReader(); r.onload = () => yes(r.result); r.onerror = () => no(r.error); r.readAsDataURL(f); });
async function attach(f) {
  if (!f) return;
  if (f.type.startsWith("image/") && !$("image").hidden) attached.push({ type: "image_url", image_url: { url: await dataUrl(f) } });
  else if (f.size > MOST_TEXT) return showError(`${f.name} has ${(f.size / 1024).toFixed(0)} KiB; files of text may have ${MOST_TEXT >> 10} KiB.`);
  else {
    let text = null;
    try { text = new TextDecoder("utf-8", { fatal: true }).decode(await f.arrayBuffer()); } catch { }
    if (text === null || text.includes("\0")) return showError(`${f.name} is no text; this model reads texts${$("image").hidden ? "" : " and images"}.`);
    attached.push({ type: "text", name: f.name, text });
  }
  drawFiles();
}
const attachAll = async files => { for (const f of files) await attach(f); };
$("image").onclick = async () => attachAll(await pick("image/*", true));
$("file").onclick = async () => attachAll(await pick("", true));
$("box").onpaste = e => { if (e.clipboardData.files.length) { e.preventDefault(); attachAll([...e.clipboardData.files]); } };
document.addEventListener("dragover", e => { if (e.dataTransfer?.types.includes("Files")) e.preventDefault(); });
document.addEventListener("drop", e => { if (e.dataTransfer?.files.length) { e.preventDefault(); attachAll([...e.dataTransfer.files]); } });
// Browsers record Opus, which not every server decodes, so it is converted to 16 kHz mono WAV.
async function wav(blob) {
  const bytes = await blob.arrayBuffer(), audio = await new OfflineAudioContext(1, 1, 16000).decodeAudioData(bytes).catch(() => { throw new Error("this is no recording that the browser can decode"); });
  const n = audio.length, out = new DataView(new ArrayBuffer(44 + 2 * n));
  const text = (at, s) => [...s].forEach((ch, i) => out.setUint8(at + i, ch.charCodeAt(0)));
  text(0, "RIFF"); out.setUint32(4, 36 + 2 * n, true); text(8, "WAVEfmt "); out.setUint32(16, 16, true); out.setUint16(20, 1, true); out.setUint16(22, 1, true); out.setUint32(24, 16000, true); out.setUint32(28, 32000, true); out.setUint16(32, 2, true); out.setUint16(34, 16, true); text(36, "data"); out.setUint32(40, 2 * n, true);
  const channels = Array.from({ length: audio.numberOfChannels }, (_, i) => audio.getChannelData(i));
  for (let i = 0; i < n; i++) { const v = channels.reduce((sum, ch) => sum + ch[i], 0) / channels.length; out.setInt16(44 + 2 * i, Math.max(-1, Math.min(1, v)) * 32767, true); }
  return new Blob([out], { type: "audio/wav" });
}
async function transcribe(blob) {
  note("Transcribing"); $("box").placeholder = "Transcribing";
  try {
    const form = new FormData(); form.append("model", models.find(m => can(m, "transcription")).id); form.append("file", await wav(blob), "speech.wav");
    const r = await ask("/v1/audio/transcriptions", { method: "POST", headers: headers(), body: form });
    if (!r.ok) throw new Error(await failure(r));
    $("box").value = ($("box").value + " " + (await r.json()).text).trim(); grow(); $("box").focus();
  } catch (e) { showError("Speech: " + e.message); if (e.unreachable) lose(); }
  capabilities();
}
$("audio").onclick = async () => { const f = await pick("audio/*"); if (f) transcribe(f); };
let recorder = null;
$("mic").onclick = async () => {
  if (recorder) return recorder.stop();
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true }), parts = [];
    recorder = new MediaRecorder(stream); recorder.ondataavailable = e => parts.push(e.data);
    recorder.onstop = () => { stream.getTracks().forEach(t => t.stop()); recorder = null; $("mic").textContent = "Record"; transcribe(new Blob(parts)); };
    recorder.start(); $("mic").textContent = "Stop recording";
  } catch (e) { showError(e.name === "NotFoundError" ? "There is no microphone." : "The browser does not let this page use the microphone."); }
};

// ---- Controls.
function grow() { $("box").style.height = "auto"; $("box").style.height = $("box").scrollHeight + "px"; }
$("box").oninput = grow;
$("form").onsubmit = e => {
  e.preventDefault();
  if (busy) return stop();
  const text = $("box").value.trim();
  if (!text && !attached.length || !$("model").value) return;
  const files = attached; attached = []; drawFiles(); $("box").value = ""; grow(); push(text, files);
};
$("box").onkeydown = e => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); if (!busy) $("form").requestSubmit(); }
  if (e.key === "ArrowUp" && !$("box").value && !busy) { const last = chat.messages.findLast(m => m.role === "user"); if (last) { e.preventDefault(); edit(last, $("talk").children[chat.messages.indexOf(last)]); } }
};
document.addEventListener("keydown", e => {
  if ((e.ctrlKey || e.metaKey) && e.key.toLowerCase() === "k") { e.preventDefault(); fresh(); }
  if (e.key === "Escape" && !document.querySelector("dialog[open]")) { stop(); document.body.classList.remove("open"); }
});
$("new").onclick = fresh;
$("menu").onclick = () => { $("menu").ariaExpanded = String(document.body.classList.toggle("open")); };
$("scroll").onclick = () => document.body.classList.remove("open");
$("model").onchange = () => { settings.model = $("model").value; keep("ingle.settings", settings); capabilities(); };
const fields = [...document.querySelectorAll("[data-key]")];
$("settings").onclick = () => { for (const f of fields) f.value = settings[f.dataset.key] ?? ""; $("own").value = chat.system ?? ""; $("wrong").hidden = true; $("options").showModal(); };
$("reset").onclick = () => { for (const f of fields) if (f.dataset.key !== "key") f.value = ""; $("own").value = ""; };
$("options").querySelector("form").onsubmit = e => {
  const schema = fields.find(f => f.dataset.key === "schema").value.trim();
  try { if (schema) JSON.parse(schema); } catch { e.preventDefault(); $("wrong").hidden = false; $("wrong").textContent = "The schema is no JSON."; return; }
  for (const f of fields) settings[f.dataset.key] = f.value;
  keep("ingle.settings", settings);
  if ($("own").value !== (chat.system ?? "")) { chat.system = $("own").value; if (chats.includes(chat)) save(chat); }
  refresh();
};
openStore().catch(() => showError("The browser keeps no conversations: its database is closed to this page.")).then(() => { fresh(); button(); refresh(); });
