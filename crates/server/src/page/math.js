"use strict";
// Formulas: conversion of TeX to MathML Core, which browsers typeset. Nodes are built one by one,
// so a formula cannot become markup. Unknown commands stay as written.

const pairs = text => new Map(text.trim().split(/\s+/).map(pair => [pair.slice(0, pair.lastIndexOf("=")), pair.slice(pair.lastIndexOf("=") + 1)]));
const IDENTIFIERS = pairs(`alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ nu=ν xi=ξ
  omicron=ο pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ
  Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω ell=ℓ hbar=ℏ hslash=ℏ infty=∞ partial=∂ nabla=∇ emptyset=∅ varnothing=∅ Re=ℜ Im=ℑ wp=℘ aleph=ℵ beth=ℶ imath=ı
  jmath=ȷ angle=∠ degree=° top=⊤ bot=⊥ forall=∀ exists=∃ nexists=∄ triangle=△ square=□ Box=□ blacksquare=■ qed=□ checkmark=✓ clubsuit=♣
  diamondsuit=♢ heartsuit=♡ spadesuit=♠ pounds=£ euro=€ copyright=© S=§ P=¶ complement=∁ prime=′ backprime=‵ Bbbk=𝕜 eth=ð mho=℧`);
const OPERATORS = pairs(`times=× cdot=⋅ cdotp=⋅ div=÷ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ oslash=⊘ odot=⊙ cap=∩ cup=∪ uplus=⊎ sqcup=⊔
  sqcap=⊓ wedge=∧ land=∧ vee=∨ lor=∨ setminus=∖ smallsetminus=∖ leq=≤ le=≤ leqslant=⩽ geq=≥ ge=≥ geqslant=⩾ neq=≠ ne=≠ equiv=≡ approx=≈ cong=≅ sim=∼
  simeq=≃ propto=∝ varpropto=∝ ll=≪ gg=≫ lll=⋘ ggg=⋙ lesssim=≲ gtrsim=≳ prec=≺ succ=≻ preceq=⪯ succeq=⪰ subset=⊂ supset=⊃ subseteq=⊆ supseteq=⊇ subsetneq=⊊
  supsetneq=⊋ in=∈ notin=∉ ni=∋ mid=∣ nmid=∤ parallel=∥ nparallel=∦ perp=⟂ to=→ rightarrow=→ leftarrow=← gets=← leftrightarrow=↔ Rightarrow=⇒
  Leftarrow=⇐ Leftrightarrow=⇔ implies=⟹ impliedby=⟸ iff=⟺ longrightarrow=⟶ longleftarrow=⟵ Longrightarrow=⟹ Longleftarrow=⟸ longleftrightarrow=⟷
  Longleftrightarrow=⟺ mapsto=↦ longmapsto=⟼ uparrow=↑ downarrow=↓ updownarrow=↕ Uparrow=⇑ Downarrow=⇓ nearrow=↗ searrow=↘ swarrow=↙ nwarrow=↖
  hookrightarrow=↪ hookleftarrow=↩ rightharpoonup=⇀ leftharpoonup=↼ rightleftharpoons=⇌ rightrightarrows=⇉ leadsto=⇝ rightsquigarrow=⇝ twoheadrightarrow=↠
  neg=¬ lnot=¬ vdash=⊢ dashv=⊣ models=⊨ vDash=⊨ Vdash=⊩ therefore=∴ because=∵ colon=: cdots=⋯ ldots=… dots=… dotsc=… dotsb=⋯ dotsm=⋯ vdots=⋮ ddots=⋱
  dagger=† ddagger=‡ asymp=≍ doteq=≐ triangleq=≜ coloneqq=≔ diamond=⋄ ltimes=⋉ rtimes=⋊ bowtie=⋈ wr=≀ amalg=⨿ boxtimes=⊠ boxplus=⊞ trianglelefteq=⊴
  triangleright=▹ triangleleft=◃ lt=< gt=> And=& smile=⌣ frown=⌢ vartriangle=△ nleq=≰ ngeq=≱ nsubseteq=⊈ ncong=≇ multimap=⊸ lhd=⊲ rhd=⊳`);
const FENCES = pairs(`langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ lbrace={ rbrace=} lbrack=[ rbrack=] vert=| lvert=| rvert=| Vert=‖ lVert=‖ rVert=‖ |=‖ {={ }=}
  backslash=\\ lgroup=⟮ rgroup=⟯ lmoustache=⎰ rmoustache=⎱ ulcorner=⌜ urcorner=⌝ llbracket=⟦ rrbracket=⟧`);
const SUMS = pairs("sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂ bigodot=⨀ bigvee=⋁ bigwedge=⋀ bigsqcup=⨆ biguplus=⨄");
const INTEGRALS = pairs("int=∫ iint=∬ iiint=∭ oint=∮ oiint=∯ intop=∫ smallint=∫");
const FUNCTIONS = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth log ln lg exp dim ker deg arg hom sgn Tr tr rank".split(" "));
const LIMITS = new Map(Object.entries({ lim: "lim", limsup: "lim sup", liminf: "lim inf", max: "max", min: "min", sup: "sup", inf: "inf", det: "det", gcd: "gcd", Pr: "Pr", argmax: "arg max", argmin: "arg min" }));
const ACCENTS = pairs("hat=^ widehat=^ tilde=~ widetilde=~ bar=¯ vec=→ dot=˙ ddot=¨ dddot=⃛ check=ˇ breve=˘ acute=´ grave=` mathring=˚ overrightarrow=→ overleftarrow=←");
const SPACES = new Map(Object.entries({ ",": .167, thinspace: .167, ":": .222, ">": .222, ";": .278, "!": -.167, " ": .25, "~": .25, nobreakspace: .25, quad: 1, qquad: 2, enspace: .5, "\n": .25 }));
const SIZES = new Map(Object.entries({ big: 1.2, Big: 1.8, bigg: 2.4, Bigg: 3 }));
const VARIANTS = pairs(`mathrm=normal mathup=normal rm=normal mathbf=bold bf=bold mathit=italic mathbb=double mathcal=script cal=script mathscr=script mathfrak=fraktur
  mathsf=sans mathtt=mono boldsymbol=bolditalic bm=bolditalic pmb=bold mathnormal=italic Bbb=double`);
const TEXTS = new Set("text textrm textit textbf texttt textsf textup textnormal mbox hbox emph".split(" "));
const SILENT = new Set("displaystyle textstyle scriptstyle scriptscriptstyle limits nolimits nonumber notag hline allowbreak nobreak relax hfill null centering hspace* vphantom strut bigstrut".split(" "));
const MATRICES = { pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", cases: "{", rcases: " }", dcases: "{" };
// First letters and digits of each alphabet in Unicode, and the exceptions.
const ALPHABETS = { bold: [0x1d400, 0x1d41a, 0x1d7ce], italic: [0x1d434, 0x1d44e], bolditalic: [0x1d468, 0x1d482, 0x1d7ce], script: [0x1d49c, 0x1d4b6], fraktur: [0x1d504, 0x1d51e], double: [0x1d538, 0x1d552, 0x1d7d8], sans: [0x1d5a0, 0x1d5ba, 0x1d7e2], mono: [0x1d670, 0x1d68a, 0x1d7f6] };
const ELSEWHERE = { script: "BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ", fraktur: "CℭHℌIℑRℜZℨ", double: "CℂHℍNℕPℙQℚRℝZℤ", italic: "hℎ" };
const GREEK = { bold: [0x1d6a8, 0x1d6c2], bolditalic: [0x1d71c, 0x1d736] };
function inAlphabet(c, variant) {
  const place = ELSEWHERE[variant]?.match(new RegExp(c.replace(/[^A-Za-z]/, "0") + "(.)", "u")), starts = ALPHABETS[variant], greek = GREEK[variant];
  if (place) return place[1];
  if (starts && /[A-Z]/.test(c)) return String.fromCodePoint(starts[0] + c.charCodeAt(0) - 65);
  if (starts && /[a-z]/.test(c)) return String.fromCodePoint(starts[1] + c.charCodeAt(0) - 97);
  if (starts?.[2] && /[0-9]/.test(c)) return String.fromCodePoint(starts[2] + Number(c));
  if (greek && /[Α-Ω]/.test(c)) return String.fromCodePoint(greek[0] + c.charCodeAt(0) - 0x391);
  if (greek && /[α-ω]/.test(c)) return String.fromCodePoint(greek[1] + c.charCodeAt(0) - 0x3b1);
  return c;
}
function ml(tag, attributes, ...kids) {
  const node = document.createElementNS("http://www.w3.org/1998/Math/MathML", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...kids);
  return node;
}
const row = nodes => nodes.length === 1 ? nodes[0] : ml("mrow", {}, ...nodes);
const space = em => ml("mspace", { width: em + "em" });
const operator = (text, attributes = {}) => ml("mo", attributes, text);
const fence = (text, attributes = {}) => operator(text, { stretchy: "false", lspace: "0", rspace: "0", ...attributes });
// Chromium needs a mathematical font for roots and tall fences, which many machines lack.
let drawsRoots = null;
function hasMathFont() {
  if (drawsRoots === null) {
    const x = ml("mi", {}, "x"), root = ml("msqrt", {}, x), math = ml("math", {}, root);
    document.body.append(math);
    drawsRoots = root.getBoundingClientRect().width > x.getBoundingClientRect().width + 1;
    math.remove();
  }
  return drawsRoots;
}
const isTall = nodes => nodes.some(node => /^(mfrac|mtable|munderover|munder|mover)$/.test(node.localName) || isTall([...node.children]));
// Nodes between stretchy fences.
function between(open, nodes, close) {
  const side = text => text ? [operator(text, { stretchy: "true", fence: "true" })] : [];
  if (hasMathFont() || !isTall(nodes)) return ml("mrow", {}, ...side(open), ...nodes, ...side(close));
  const shape = text => ({ "(": "round", ")": "round", "{": "curly", "}": "curly", "|": "bar", "‖": "bars", "": "none" })[text] ?? "square";
  return ml("mrow", { class: `tex-fenced tex-left-${shape(open)} tex-right-${shape(close)}` }, ...nodes);
}
const MOST_DEPTH = 60, MOST_TEX = 8000;

class Tex {
  constructor(source) { this.source = source; this.at = 0; this.depth = 0; this.variant = ""; }
  // The next token, a command or a character, and its end.
  peek() {
    const m = /(?:\s|%[^\n]*(?:\n|$))*(\\[A-Za-z]+|\\[\s\S]|[^\\])?/uy;
    m.lastIndex = this.at;
    const found = m.exec(this.source)?.[1];
    this.end = found === undefined ? this.source.length : m.lastIndex;
    return found;
  }
  take() { const token = this.peek(); this.at = this.end; return token; }
  takes(token) { const is = this.peek() === token; if (is) this.at = this.end; return is; }
  // The raw source between the next braces, or one token without braces.
  raw() {
    if (!this.takes("{")) return this.take() ?? "";
    const begin = this.at;
    for (let open = 1; this.at < this.source.length; this.at++) {
      const c = this.source[this.at];
      if (c === "\\") this.at++;
      else if (c === "{") open++;
      else if (c === "}" && !--open) return this.source.slice(begin, this.at++);
    }
    return this.source.slice(begin);
  }
  optional() {
    if (!this.takes("[")) return null;
    const nodes = this.list(["]"]);
    this.takes("]");
    return row(nodes);
  }
  // An argument or a script: a group, a command with its arguments, or a single character.
  argument() {
    const token = this.peek();
    if (token === undefined || token === "}" || token === "&") return ml("mrow", {});
    if (/\d/.test(token)) { this.at = this.end; return ml("mn", {}, inAlphabet(token, this.variant)); }
    return this.atom(true) ?? ml("mrow", {});
  }
  with(variant) {
    const before = this.variant;
    this.variant = variant;
    const node = this.argument();
    this.variant = before;
    return node;
  }
  // Everything up to one of these tokens, which is not consumed.
  list(stops) {
    const nodes = [];
    if (++this.depth > MOST_DEPTH) { nodes.push(ml("mtext", {}, this.source.slice(this.at))); this.at = this.source.length; }
    for (let token; (token = this.peek()) !== undefined && !stops.includes(token);) {
      // These tokens begin no atom and end no group here.
      if (token === "}" || token === "&" || token === "\\\\" || token === "\\right" || token === "\\end") {
        if (stops.some(stop => stop === token || stop === "}" || stop === "\\right" || stop === "\\end")) break;
        this.at = this.end;
        continue;
      }
      const base = this.atom(false);
      if (base) this.scripts(base, nodes);
    }
    this.depth--;
    return nodes;
  }
  scripts(base, nodes) {
    let below = null, above = null, primes = "", limits = base.limits;
    for (;;) {
      const token = this.peek();
      if (token === "^" || token === "_") {
        this.at = this.end;
        const script = this.argument();
        if (token === "_") below = below ? row([below, script]) : script; else above = above ? row([above, script]) : script;
      } else if (token === "'") { this.at = this.end; primes += "′"; }
      else if (token === "\\limits" || token === "\\nolimits") { this.at = this.end; limits = token === "\\limits"; }
      else break;
    }
    if (primes) above = above ? row([operator(primes), above]) : operator(primes);
    const kids = [base, below, above].filter(Boolean), tag = (limits ? ["", "munder", "mover", "munderover"] : ["", "msub", "msup", "msubsup"])[(below ? 1 : 0) + (above ? 2 : 0)];
    const node = tag ? ml(tag, {}, ...kids) : base;
    const previous = nodes.at(-1);
    if (base.named && previous && !/^m(o|space)$/.test(previous.localName)) nodes.push(space(.167));
    nodes.push(node);
    if (base.named && /^[^([{|,.;)\]}&^_\\]|^\\[A-Za-z]/.test(this.peek() ?? "") && !/^\\(left|right|big|Big|end)/.test(this.peek())) nodes.push(space(.167));
  }
  named(text, limits) {
    const node = operator(text, { lspace: "0", rspace: "0", form: "prefix", ...(limits ? { movablelimits: "true" } : {}) });
    return Object.assign(node, { named: true, limits });
  }
  // One atom without its scripts; null if it is invisible.
  atom(single) {
    const token = this.take();
    if (token === "{") { const nodes = this.list(["}"]); this.takes("}"); return ml("mrow", {}, ...nodes); }
    if (token.startsWith("\\")) return this.command(token.slice(1));
    if (token === "^" || token === "_") { this.at -= 1; return ml("mrow", {}); }
    if (token === "~") return space(.25);
    if (/\d/.test(token)) {
      const more = single ? null : /(?:\d|,\d{3}(?!\d)|\.\d)*/y;
      if (more) { more.lastIndex = this.at; const found = more.exec(this.source)[0]; this.at += found.length; return ml("mn", {}, [...token + found].map(c => inAlphabet(c, this.variant)).join("")); }
      return ml("mn", {}, inAlphabet(token, this.variant));
    }
    if (/\p{L}/u.test(token)) return this.letters(token, single);
    if ("()[]|".includes(token)) return fence(token);
    if (token === "'") return operator("′");
    if (token === "/") return operator("/", { stretchy: "false", lspace: "0", rspace: "0" });
    return operator({ "-": "−", "*": "∗", "`": "‘" }[token] ?? token, token === "," || token === ";" ? { separator: "true" } : {});
  }
  letters(first, single) {
    if (!this.variant || this.variant === "italic") return ml("mi", {}, first);
    // A word in another alphabet is one identifier.
    const more = /[A-Za-z]*/y;
    more.lastIndex = this.at;
    const word = first + (single || !/[A-Za-z]/.test(first) ? "" : more.exec(this.source)[0]);
    this.at += word.length - first.length;
    const text = [...word].map(c => inAlphabet(c, this.variant)).join("");
    return ml("mi", [...text].length === 1 ? { mathvariant: "normal" } : {}, text);
  }
  delimiter() {
    const token = this.take() ?? ".", name = token.slice(1);
    if (!token.startsWith("\\")) return token === "." ? "" : { "<": "⟨", ">": "⟩" }[token] ?? token;
    return FENCES.get(name) ?? OPERATORS.get(name) ?? name;
  }
  text(name, raw) {
    const node = ml("mrow", name === "textbf" ? { class: "tex-bold" } : name === "textit" || name === "emph" ? { class: "tex-italic" } : name === "texttt" ? { class: "tex-mono" } : {});
    raw.split(/(?<!\\)\$/).forEach((part, i) => {
      if (i % 2) node.append(...new Tex(part).list([]));
      else if (part) node.append(ml("mtext", {}, part.replace(/\\([{}$%&#_ ])/g, "$1").replace(/^\s+|\s+$/g, "\u00a0").replace(/[{}]/g, "").replace(/~/g, "\u00a0")));
    });
    return node;
  }
  command(name) {
    const identifier = IDENTIFIERS.get(name), sign = OPERATORS.get(name), side = FENCES.get(name);
    if (identifier) return ml("mi", /[α-ωϑϖϱϕ]/.test(identifier) && !this.variant ? {} : { mathvariant: "normal" }, inAlphabet(identifier, this.variant));
    if (sign) return operator(sign);
    if (side) return fence(side);
    if (SUMS.has(name)) return Object.assign(operator(SUMS.get(name), { movablelimits: "true", largeop: "true" }), { limits: true });
    if (INTEGRALS.has(name)) return operator(INTEGRALS.get(name), { largeop: "true" });
    if (FUNCTIONS.has(name)) return this.named(name, false);
    if (LIMITS.has(name)) return this.named(LIMITS.get(name).replace(" ", "\u2009"), true);
    if (SPACES.has(name)) return space(SPACES.get(name));
    if (TEXTS.has(name)) return this.text(name, this.raw());
    if (VARIANTS.has(name)) return this.with(VARIANTS.get(name));
    if (SILENT.has(name)) return null;
    if (ACCENTS.has(name)) {
      const stretchy = String(/^(wide|over)/.test(name));
      return ml("mover", { accent: "true" }, this.argument(), operator(ACCENTS.get(name), { stretchy }));
    }
    const sized = /^([bB]igg?)[lrm]?$/.exec(name);
    if (sized) {
      const size = SIZES.get(sized[1]) + "em";
      return fence(this.delimiter(), { stretchy: "true", symmetric: "true", minsize: size, maxsize: size });
    }
    switch (name) {
      case "frac": case "cfrac": return ml("mfrac", {}, this.argument(), this.argument());
      case "dfrac": return ml("mstyle", { displaystyle: "true" }, ml("mfrac", {}, this.argument(), this.argument()));
      case "tfrac": return ml("mstyle", { displaystyle: "false", scriptlevel: "+0" }, ml("mfrac", {}, this.argument(), this.argument()));
      case "binom": case "dbinom": case "tbinom":
        return between("(", [ml("mfrac", { linethickness: "0" }, this.argument(), this.argument())], ")");
      case "sqrt": {
        const degree = this.optional(), base = this.argument();
        if (hasMathFont()) return degree ? ml("mroot", {}, base, degree) : ml("msqrt", {}, base);
        const sign = fence("√");
        return ml("mrow", {}, degree ? ml("msup", {}, ml("mrow", {}), degree) : "", sign, ml("mrow", { class: "tex-over" }, base));
      }
      case "left": return this.fenced();
      case "middle": return operator(this.delimiter(), { stretchy: "true", fence: "true" });
      case "begin": return this.environment(this.raw().trim());
      case "operatorname": { const limits = this.takes("*"); return this.named(this.raw().replace(/\\[,;: ]|~/g, "\u2009").replace(/\\(?:mathrm|text)\s*|[{}]/g, ""), limits); }
      case "overline": return ml("mrow", { class: "tex-over" }, this.argument());
      case "underline": return ml("mrow", { class: "tex-under" }, this.argument());
      case "boxed": case "fbox": return ml("mrow", { class: "tex-box" }, name === "fbox" ? this.text(name, this.raw()) : this.argument());
      case "cancel": case "bcancel": case "xcancel": return ml("mrow", { class: "tex-cancel" }, this.argument());
      case "overbrace": return Object.assign(ml("mover", {}, this.argument(), operator("⏞", { stretchy: "true" })), { limits: true });
      case "underbrace": return Object.assign(ml("munder", {}, this.argument(), operator("⏟", { stretchy: "true" })), { limits: true });
      case "overset": case "stackrel": { const above = this.argument(); return ml("mover", {}, this.argument(), above); }
      case "underset": { const below = this.argument(); return ml("munder", {}, this.argument(), below); }
      case "substack": return grid(new Tex(this.raw()).rows(), "c", false);
      case "xrightarrow": case "xleftarrow": {
        const below = this.optional(), above = this.argument(), arrow = operator(name === "xrightarrow" ? "→" : "←", { stretchy: "true" });
        return below ? ml("munderover", {}, arrow, below, above) : ml("mover", {}, arrow, above);
      }
      case "not": { const node = this.argument(); node.textContent += "\u0338"; return node; }
      case "mathop": return Object.assign(ml("mrow", {}, this.argument()), { limits: true });
      case "mathbin": case "mathrel": case "mathord": case "mathopen": case "mathclose": case "mathpunct": case "mathinner": case "smash": case "ensuremath": return this.argument();
      case "phantom": case "hphantom": return ml("mphantom", {}, this.argument());
      case "pmod": return ml("mrow", {}, space(.5), fence("("), ml("mi", {}, "mod"), space(.333), this.argument(), fence(")"));
      case "bmod": return operator("mod");
      case "mod": return ml("mrow", {}, space(.5), ml("mi", {}, "mod"), space(.333));
      case "tag": { const star = this.takes("*"), text = this.raw(); return ml("mrow", {}, space(2), ml("mtext", {}, star ? text : `(${text})`)); }
      case "label": case "vspace": case "hspace": case "color": this.raw(); return null;
      case "textcolor": case "colorbox": this.raw(); return this.argument();
      case "%": case "$": case "#": case "&": case "_": return ml("mi", {}, name);
      default: return ml("mtext", { class: "tex-unknown" }, "\\" + name);
    }
  }
  fenced() {
    const open = this.delimiter(), inside = this.list(["\\right"]);
    return between(open, inside, this.takes("\\right") ? this.delimiter() : "");
  }
  environment(name) {
    const bare = name.replace("*", "");
    let columns = "";
    if (bare === "array") columns = this.raw().replace(/[^lcr]/g, "");
    else if (/^alignat|^alignedat/.test(bare)) this.raw();
    const aligned = /^(align|aligned|alignat|alignedat|split|eqnarray|flalign)$/.test(bare);
    const node = grid(this.rows(), aligned ? "rl" : /cases$/.test(bare) ? "l" : columns || "c", aligned || /^(gather|gathered|equation|multline)$/.test(bare));
    if (this.takes("\\end")) this.raw();
    const [open = "", close = ""] = MATRICES[bare] ?? "";
    return MATRICES[bare] ? between(open.trim(), [node], close) : node;
  }
  // The cells of each row, up to the end of an environment or of the source.
  rows() {
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(this.list(["&", "\\\\", "\\cr", "\\end"]));
      const stop = this.peek();
      if (stop === undefined || stop === "\\end") break;
      this.at = this.end;
      if (stop === "&") continue;
      const size = /\s*(?:\*|\[[\d.\s]*(?:pt|em|ex|mm|cm)\])?/y;
      size.lastIndex = this.at;
      this.at += size.exec(this.source)[0].length;
      rows.push([]);
    }
    return rows.filter(cells => cells.some(nodes => nodes.length));
  }
}
// `columns` is the alignment of the columns; the pattern repeats.
function grid(rows, columns, isWide) {
  const cell = (nodes, i) => ml("mtd", { class: "tex-" + columns[i % columns.length] }, ...nodes);
  return ml("mtable", isWide ? { displaystyle: "true", class: "tex-wide" } : {}, ...rows.map(cells => ml("mtr", {}, ...cells.map(cell))));
}
// A formula; null if it is empty, or too large for one.
function formula(source, isBlock) {
  if (source.length > MOST_TEX) return null;
  const tex = new Tex(source), rows = tex.rows();
  // An end without a begin has no effect.
  while (tex.peek() !== undefined) { tex.take(); rows.push(...tex.rows()); }
  if (!rows.length) return null;
  const shown = rows.length === 1 && rows[0].length === 1 ? ml("mrow", {}, ...rows[0][0]) : grid(rows, "rl", true);
  const note = ml("annotation", { encoding: "application/x-tex" }, source);
  return ml("math", { display: isBlock ? "block" : "inline", ...(isBlock ? { displaystyle: "true", tabindex: "0" } : {}) }, ml("semantics", {}, shown, note));
}
