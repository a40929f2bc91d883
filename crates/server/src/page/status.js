"use strict";
const bytes = n => { const units = ["B", "KiB", "MiB", "GiB", "TiB"]; let i = 0; while (n >= 1024 && i < 4) { n /= 1024; i++; } return n.toFixed(i ? 1 : 0) + " " + units[i]; };
const seconds = s => s === null ? "–" : s < 1 ? (s * 1000).toFixed(s < .01 ? 1 : 0) + " ms" : s.toFixed(1) + " s";
// Parses Prometheus' text: numbers of each model and memory by name, and buckets by histogram.
function parse(text) {
  const models = new Map(), memories = new Map();
  for (const line of text.split("\n")) {
    const m = /^(\w+)\{(.*)\} (\S+)$/.exec(line);
    if (!m) continue;
    const labels = Object.fromEntries([...m[2].matchAll(/(\w+)="((?:\\.|[^"\\])*)"/g)].map(l => [l[1], l[2].replace(/\\(.)/g, (_, c) => c === "n" ? "\n" : c)]));
    const of = labels.model !== undefined ? models : labels.device !== undefined ? memories : null, id = labels.model ?? labels.device;
    if (!of) continue;
    if (!of.has(id)) of.set(id, { buckets: {} });
    if (labels.le) ((of.get(id).buckets[m[1].replace(/_bucket$/, "")]) ??= []).push([labels.le === "+Inf" ? Infinity : Number(labels.le), Number(m[3])]);
    else of.get(id)[m[1]] = labels.reason ?? Number(m[3]);
  }
  return { models, memories };
}
// The upper bound of the bucket with this quantile of the observations since `old`.
function quantile(now, old, part) {
  if (!now) return null;
  const counts = now.map(([bound, n], i) => [bound, n - (old?.[i]?.[1] ?? 0)]), all = counts.at(-1)[1];
  if (all <= 0) return null;
  const at = counts.find(([, n]) => n >= part * all)[0];
  return at === Infinity ? counts.at(-2)[0] : at;
}
const KEEP = 120, history = new Map(), views = new Map();
function card(name, chart) {
  const big = el("b"), line = document.createElementNS("http://www.w3.org/2000/svg", "polyline"), svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 119 40"); svg.setAttribute("preserveAspectRatio", "none"); svg.setAttribute("aria-hidden", "true"); svg.append(line);
  const small = el("span", { textContent: name }), node = el("div", { className: "card" }, small, big, ...(chart ? [svg] : []));
  return { node, set(text, values) { big.textContent = text; if (values) { const top = Math.max(...values, 1e-9); line.setAttribute("points", values.map((v, i) => `${KEEP - values.length + i},${(39 - 37 * v / top).toFixed(1)}`).join(" ")); } } };
}
function meter(name) { const c = card(name), bar = el("progress", { max: 1, ariaLabel: name }); c.node.append(bar); return { ...c, bar }; }

// ---- The server: its version, and each memory that it manages.
const version = card("Version"), memoryViews = new Map();
$("memory").append(version.node);
function drawMemory(device, now) {
  const of = device ? " of " + device : "";
  if (!memoryViews.has(device)) {
    const cards = { resident: card("Memory of the process, without files"), fixed: card("Weights and activations" + of), held: meter("Keys, values and caches" + of), free: card("Free" + (of || " on this machine")) };
    if (device) delete cards.resident;
    memoryViews.set(device, cards);
    $("memory").append(...Object.values(cards).map(c => c.node));
  }
  const cards = memoryViews.get(device), get = k => now[`ingle_memory_${k}_bytes`] ?? 0;
  cards.resident?.set(bytes(get("resident")));
  cards.fixed.set(bytes(get("fixed")));
  cards.held.set(`${bytes(get("held"))} of ${bytes(get("budget"))}`);
  cards.held.bar.value = get("budget") ? get("held") / get("budget") : 0;
  cards.free.set(bytes(get("free")));
}

// ---- A loaded model.
const isText = m => !m?.capabilities || m.capabilities.includes("completion");
function about(m) {
  const meta = m?.meta ?? {}, words = [];
  if (m?.capabilities) words.push(m.capabilities.includes("chat") ? "chat" : m.capabilities.includes("completion") ? "base model" : m.capabilities.join(", "));
  if (meta.device) words.push(meta.device);
  if (m?.max_model_len) words.push(`context ${m.max_model_len.toLocaleString("en")}` + (meta.n_ctx_train > m.max_model_len ? ` of ${meta.n_ctx_train.toLocaleString("en")}` : ""));
  if (meta.size) words.push(bytes(meta.size) + " of weights");
  return words.join(" · ");
}
function view(id, writes) {
  const cards = writes
    ? { rate: card("Tokens per second", true), prompt: card("Prompt tokens per second", true), running: card("Requests running", true), waiting: card("Waiting and parked", true), first: card("First token, median of 2 minutes"), token: card("Between tokens, median and p99"), cached: card("Prompt tokens from the cache"), kv: meter("Memory of keys and values") }
    : { running: card("Requests running", true), waiting: card("Waiting", true), whole: card("A request, median and p99 of 2 minutes") };
  const rows = el("tbody"), table = el("div", { className: "scroll", hidden: true }, el("table", {}, el("thead", {}, el("tr", {}, ...["Slot", "Request", "Prompt", "Answer", "Time"].map(t => el("th", { textContent: t, scope: "col" })))), rows));
  const facts = el("span"), free = el("p", { className: "quiet", hidden: true });
  const node = el("section", {}, el("h2", {}, id, facts), el("div", { className: "grid" }, ...Object.values(cards).map(c => c.node)), table, free);
  return { node, cards, rows, table, facts, free };
}
function draw(id, now, slots, model) {
  const writes = isText(model);
  if (!history.has(id)) { history.set(id, []); views.set(id, view(id, writes)); $("models").append(views.get(id).node); }
  const past = history.get(id), v = views.get(id), get = (s, k) => s[k] ?? 0, old = past.at(-1), at = performance.now();
  const rate = k => old ? Math.max(0, get(now, k) - get(old, k)) * 1000 / (at - old.at) : 0;
  Object.assign(now, { at, rate: rate("ingle_tokens_generated_total"), prompt: rate("ingle_tokens_computed_total"), running: get(now, "ingle_requests_running"), waiting: get(now, "ingle_requests_waiting") + get(now, "ingle_requests_parked") });
  past.push(now); if (past.length > KEEP) past.shift();
  const series = k => past.map(s => s[k]), begin = past[0] === now ? null : past[0].buckets, c = v.cards;
  const q = (name, p) => seconds(quantile(now.buckets[name], begin?.[name], p)), most = text => text === "–" ? text : "≤ " + text;
  v.facts.textContent = about(model);
  c.running.set(now.running, series("running"));
  c.waiting.set(writes ? `${now.ingle_requests_waiting ?? "–"} · ${now.ingle_requests_parked ?? "–"}` : now.waiting, series("waiting"));
  c.whole?.set(`${most(q("ingle_request_seconds", .5))} · ${most(q("ingle_request_seconds", .99))}`);
  if (writes) {
    c.rate.set(now.rate.toFixed(1), series("rate")); c.prompt.set(now.prompt.toFixed(1), series("prompt"));
    c.first.set(most(q("ingle_first_token_seconds", .5))); c.token.set(`${most(q("ingle_token_seconds", .5))} · ${most(q("ingle_token_seconds", .99))}`);
    const cached = get(now, "ingle_tokens_cached_total"), all = cached + get(now, "ingle_tokens_computed_total");
    c.cached.set(all ? (100 * cached / all).toFixed(0) + " %" : "–");
    const used = get(now, "ingle_kv_bytes_used"), budget = get(now, "ingle_kv_bytes_budget");
    c.kv.set(`${bytes(used)} of ${bytes(budget)}`); c.kv.bar.value = budget ? used / budget : 0;
  }
  const mine = slots.filter(s => (s.model ?? id) === id), busy = mine.filter(s => s.is_processing);
  v.table.hidden = !busy.length;
  v.rows.replaceChildren(...busy.map(s => el("tr", {}, ...[s.id, s.request_id ?? "of another key", s.n_prompt_tokens ?? "", s.n_decoded ?? "", s.seconds === undefined ? "" : s.seconds.toFixed(1) + " s"].map(t => el("td", { textContent: t })))));
  const idle = mine.length - busy.length;
  v.free.hidden = !mine.length;
  v.free.textContent = busy.length ? `${idle} of ${mine.length} slots are free.` : `All ${mine.length} slots are free.`;
}
async function tick() {
  const key = load("ingle.settings", {}).key, headers = key ? { authorization: "Bearer " + key } : {};
  try {
    const [health, metrics, slots, models, about] = await Promise.all(["/health", "/metrics", "/slots", "/v1/models", "/version"].map(path => ask(path, { headers })));
    if (metrics.status === 401) throw new Error("The server needs an API key: give it on the chat page.");
    if (!metrics.ok) throw new Error(`/metrics answered ${metrics.status}.`);
    const busy = slots.ok ? await slots.json() : [], all = parse(await metrics.text()), served = models.ok ? (await models.json()).data : [];
    version.set(about.ok ? "Ingle " + (await about.json()).version : "–");
    for (const [device, now] of all.memories) drawMemory(device, now);
    for (const [id, view] of views) if (!all.models.has(id)) { view.node.remove(); views.delete(id); history.delete(id); }
    for (const [id, now] of all.models) draw(id, now, busy, served.find(m => m.id === id));
    // Adapters share the metrics of their models.
    const idle = served.filter(m => !m.parent && !all.models.has(m.id));
    $("others").hidden = !idle.length;
    $("others").querySelector("ul").replaceChildren(...idle.map(m => el("li", {}, m.id, el("span", { className: "quiet", textContent: m.capabilities ? " · " + m.capabilities.join(", ") : "" }))));
    $("state").className = ""; $("state").textContent = health.status === 503 ? "loading" : "ready";
  } catch (e) { $("state").className = "error"; $("state").textContent = e.message; }
  setTimeout(tick, 1000);
}
tick();
