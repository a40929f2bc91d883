"use strict";
// ---- Markdown. Nodes get their text by textContent only, so a model's text is never parsed as
// markup.
const KEYWORDS = new Set("as async await break case catch class const continue def del do elif else enum except export extends false False finally fn for from func function if impl import in interface is lambda let loop match mod mut new nil None not null or and pass pub raise return select self static struct super switch this throw trait true True try type use var void where while with yield SELECT FROM WHERE JOIN INSERT UPDATE int float double char bool string String".split(" "));
const TOKEN = /(\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)|(?<![\w$&])#[^\n]*|--\s[^\n]*)|("""[\s\S]*?(?:"""|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)|(\b\d[\w.]*)|([A-Za-z_]\w*)/g;
function colour(code, lang) {
  const out = document.createDocumentFragment();
  if (!lang || /^(text|txt|plain|markdown|md)$/.test(lang) || code.length > 40000) { out.append(code); return out; }
  let at = 0;
  for (const m of code.matchAll(TOKEN)) {
    const kind = m[1] ? "com" : m[2] ? "str" : m[3] ? "num" : KEYWORDS.has(m[4]) ? "kw" : "";
    if (!kind || (kind === "com" && m[0].startsWith("//") && /^(py|python|sh|bash|yaml|toml)$/.test(lang))) continue;
    out.append(code.slice(at, m.index), el("span", { className: kind, textContent: m[0] })); at = m.index + m[0].length;
  }
  out.append(code.slice(at));
  return out;
}
// Inline elements. The first matching alternative wins, so code and formulas stay unchanged.
const BALANCED = String.raw`(?:[^\s<>()\\]|\\.|\((?:[^\s<>()\\]|\\.|\([^\s()]*\))*\))`;
const ENVIRONMENT = String.raw`(?:equation|align|alignat|gather|multline|eqnarray|flalign)\*?`;
const INLINE = new RegExp([
  String.raw`(?<ticks>\`+)(?<code>[^\`]|[^\`][\s\S]*?[^\`])\k<ticks>(?!\`)`,
  // As in Pandoc, no space follows the opening dollar of a formula. Before the closing one there is
  // no space, and after it no digit.
  String.raw`\\\((?<math1>[\s\S]+?)\\\)|\\\[(?<display1>[\s\S]+?)\\\]|(?<!\\)\$\$(?<display2>(?:\\[\s\S]|[^$\\])+?)\$\$`,
  String.raw`(?<![\w$\\])\$(?![\s$])(?<math2>(?:\\.|[^$\\\n]|\n(?!\n))+?)(?<!\s)\$(?:(?![\w$])|(?=(?:th|st|nd|rd|s)\b))`,
  String.raw`(?<display3>\\begin\{(?<name>${ENVIRONMENT})\}[\s\S]*?\\end\{\k<name>\})`,
  String.raw`!?\[(?<text>(?:\\.|[^\[\]\n\\]|\[[^\[\]\n]*\])*)\]\((?:<(?<url1>[^<>\n]*)>|(?<url2>${BALANCED}*))(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?\s*\)`,
  String.raw`\*\*(?=\S)(?<strong1>[\s\S]+?)\*\*|(?<!\w)__(?=\S)(?<strong2>[\s\S]+?)__(?!\w)`,
  String.raw`\*(?=[^\s*])(?<em1>[^*\n]+?)\*|(?<!\w)_(?=\S)(?<em2>[^_\n]+?)_(?!\w)|~~(?=\S)(?<del>[\s\S]+?)~~`,
  String.raw` {2,}\n|\\\n(?<br>)`,
  // A backslash before a bracket begins an incomplete formula.
  String.raw`\\(?<escaped>[!-'*-\/:-@\\^-\`{-~])`,
  String.raw`<(?<auto>https?:\/\/[^\s<>]+)>|(?<bare>https?:\/\/(?:[^\s<>"'\`()]|\((?:[^\s<>"'\`()]|\([^\s()]*\))*\))+)`,
].join("|"), "g");
const link = (url, ...kids) => /^(https?:|mailto:)/i.test(url) ? el("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, ...kids) : el("span", {}, ...kids);
// "$5 a piece, or 10$" has two prices and no formula.
const isProse = text => !/[\\^_{}=<>+|]/.test(text) && /[A-Za-z]{2,}\s|\s[A-Za-z]{2,}/.test(text);
function inline(text, depth = 0) {
  const out = document.createDocumentFragment();
  if (depth > 6) { out.append(text); return out; }
  let at = 0;
  for (const m of text.matchAll(INLINE)) {
    out.append(text.slice(at, m.index)); at = m.index + m[0].length;
    const g = m.groups, sub = t => inline(t, depth + 1), url = g.url1 ?? g.url2;
    const tex = g.math1 ?? g.math2, display = g.display1 ?? g.display2 ?? g.display3;
    if (g.code) out.append(el("code", { textContent: g.code }));
    else if (g.math2 && isProse(g.math2)) out.append(m[0]);
    else if (tex ?? display) out.append(formula(tex ?? display, display !== undefined) ?? m[0]);
    else if (url !== undefined) { const to = url.replace(/\\([!-\/:-@[-`{-~])/g, "$1"); out.append(link(to, g.text ? sub(g.text) : to)); }
    else if (g.strong1 ?? g.strong2) out.append(el("strong", {}, sub(g.strong1 ?? g.strong2)));
    else if (g.em1 ?? g.em2) out.append(el("em", {}, sub(g.em1 ?? g.em2)));
    else if (g.del) out.append(el("del", {}, sub(g.del)));
    else if (g.escaped) out.append(g.escaped);
    else if (g.auto) out.append(link(g.auto, g.auto));
    else if (g.bare) { const to = g.bare.replace(/[.,;:!?*_~\]]+$/, ""); out.append(link(to, to), g.bare.slice(to.length)); }
    else out.append(el("br"));
  }
  out.append(text.slice(at));
  return out;
}
const FENCE = /^ {0,3}(```+|~~~+)\s*([^\s`]*)/, ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/, RULE = /^ {0,3}([-*_])( *\1){2,}\s*$/;
// A line that begins a formula, and the mark that ends it.
const FORMULA = new RegExp(String.raw`^\s*(?:(\\\[)|(\$\$)|\\begin\{(${ENVIRONMENT})\})`);
function endOfFormula(line) {
  const m = FORMULA.exec(line), end = m && (m[1] ? "\\]" : m[2] ? "$$" : `\\end{${m[3]}}`);
  return end && !line.slice(m[0].length).includes(end) ? end : null;
}
// Splits a text into its blocks. A block that streaming has not changed keeps its node.
function blocks(text) {
  const out = []; let now = [], fence = null, end = null;
  const flush = () => { if (now.length) out.push(now.join("\n")); now = []; };
  for (const line of text.split("\n")) {
    if (fence) { now.push(line); if (line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "")) { fence = null; flush(); } continue; }
    if (end) { now.push(line); if (line.includes(end)) { end = null; flush(); } continue; }
    const f = FENCE.exec(line);
    if (f && !(now.length && ITEM.test(now[0]))) { flush(); fence = f[1]; now.push(line); continue; }
    const list = now.length && ITEM.test(now[0]);
    if (!list && (end = endOfFormula(line))) { flush(); now.push(line); continue; }
    if (!line.trim()) { if (list) now.push(line); else flush(); continue; }
    const item = list && ITEM.exec(line);
    if (list && !now.at(-1).trim() && !item && !/^\s{2,}/.test(line) || item && item[1].length < 2 && /\d/.test(item[2]) !== /\d/.test(ITEM.exec(now[0])[2])) flush();
    else if (/^#{1,6}\s/.test(line) || RULE.test(line)) { flush(); out.push(line); continue; }
    else if (!list && ITEM.test(line) || now.length && line.startsWith(">") !== now[0].startsWith(">")) flush();
    now.push(line);
  }
  flush();
  return out;
}
function block(src, depth = 0) {
  const lines = src.split("\n"); let m;
  if ((m = FENCE.exec(lines[0]))) {
    const last = lines.at(-1).trim(), closed = lines.length > 1 && last.startsWith(m[1]) && !last.replaceAll(m[1][0], "");
    const code = lines.slice(1, closed ? -1 : undefined).join("\n");
    const shown = m[2].toLowerCase() === "math" && closed && formula(code, true);
    if (shown) return el("p", {}, shown);
    const copy = el("button", { type: "button", textContent: "Copy" });
    copy.onclick = () => copyText(code, copy);
    return el("div", { className: "code" }, el("div", {}, el("span", { textContent: m[2] || "code" }), copy), el("pre", { tabIndex: 0 }, el("code", {}, colour(code, m[2].toLowerCase()))));
  }
  if ((m = /^(#{1,6})\s+(.*?)\s*#*$/.exec(src))) return el("h" + Math.min(4, m[1].length), {}, inline(m[2]));
  if (RULE.test(src)) return el("hr");
  if (src.startsWith(">") && depth < 5) return markdown(el("blockquote"), lines.map(l => l.replace(/^> ?/, "")).join("\n"), depth + 1);
  if (ITEM.test(lines[0]) && depth < 8) return list(lines, depth);
  if (lines.length > 1 && lines[0].includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[1])) return table(lines);
  return el("p", {}, inline(src.trimEnd()));
}
function list(lines, depth) {
  const first = ITEM.exec(lines[0]), base = first[1].length, ordered = /\d/.test(first[2]);
  const root = el(ordered ? "ol" : "ul", ordered ? { start: parseInt(first[2], 10) } : {}), items = [];
  for (const line of lines) {
    const m = ITEM.exec(line);
    if (m && m[1].length < base + 2) items.push([m[3]]); else items.at(-1).push(line);
  }
  for (const [head, ...rest] of items) {
    const indents = rest.filter(l => l.trim()).map(l => /^\s*/.exec(l)[0].length), cut = Math.min(...indents, 99);
    const task = /^\[([ xX])\]\s+(.*)$/.exec(head), li = el("li", {}, inline(task ? (task[1] === " " ? "☐ " : "☑ ") + task[2] : head));
    if (indents.length) markdown(li, rest.map(l => l.slice(cut)).join("\n"), depth + 1);
    root.append(li);
  }
  return root;
}
function table(lines) {
  const cells = l => l.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map(c => c.trim().replaceAll("\\|", "|"));
  const align = cells(lines[1]).map(c => /^:-+:$/.test(c) ? "c" : /-:$/.test(c) ? "r" : "");
  const row = (l, tag) => el("tr", {}, ...cells(l).map((c, i) => el(tag, { className: align[i] || "" }, inline(c))));
  return el("div", { className: "table" }, el("table", {}, el("thead", {}, row(lines[0], "th")), el("tbody", {}, ...lines.slice(2).map(l => row(l, "td")))));
}
function markdown(into, text, depth = 0) { for (const b of blocks(text)) into.append(block(b, depth)); return into; }
class Writer {
  constructor() { this.node = el("div", { className: "md" }); this.seen = []; }
  set(text) {
    const next = blocks(text); let i = 0;
    while (i < next.length && next[i] === this.seen[i]) i++;
    while (this.node.childNodes.length > i) this.node.lastChild.remove();
    for (; i < next.length; i++) this.node.append(block(next[i]));
    this.seen = next;
  }
}
async function copyText(text, button) {
  try { await navigator.clipboard.writeText(text); }
  catch { const t = el("textarea", { value: text }); document.body.append(t); t.select(); document.execCommand("copy"); t.remove(); button.focus(); }
  const was = button.textContent; button.textContent = "Copied"; note("Copied"); setTimeout(() => { button.textContent = was; }, 1200);
}

// Copying a formula copies its TeX, as the model wrote it.
document.addEventListener("copy", e => {
  const range = getSelection().rangeCount ? getSelection().getRangeAt(0) : null, copied = range?.cloneContents(), formulas = [...(copied?.querySelectorAll("math") ?? [])];
  if (!formulas.length) return;
  for (const math of formulas) {
    const tex = math.querySelector("annotation")?.textContent;
    if (tex !== undefined) math.replaceWith(math.getAttribute("display") === "block" ? `\\[${tex}\\]` : `\\(${tex}\\)`);
  }
  const host = el("div", { className: "only" }, copied);
  document.body.append(host);
  e.clipboardData.setData("text/plain", host.innerText);
  host.remove();
  e.preventDefault();
});
