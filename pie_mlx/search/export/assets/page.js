"use strict";
(() => {
  const run = JSON.parse(document.getElementById("run").textContent);
  const nodes = run.nodes;
  const CHUNK = 200;
  const box = document.getElementById("tree");
  const find = document.getElementById("find");
  const only = document.getElementById("status");
  const hits = document.getElementById("hits");
  const byId = new Map(nodes.map((node, at) => [node.id, at]));
  const parentOf = (node) => {
    const cut = node.id.lastIndexOf(".");
    return cut < 0 ? null : nodes[byId.get(node.id.slice(0, cut))];
  };
  const children = new Map();
  for (const node of nodes) {
    const above = parentOf(node);
    if (above === null) continue;
    if (!children.has(above.id)) children.set(above.id, []);
    children.get(above.id).push(node);
  }
  const opened = new Set();
  const detailed = new Set();
  const shown = new Map();
  let selected = nodes.length ? nodes[0].id : null;
  let kept = null;

  const make = (name, kind, text) => {
    const element = document.createElement(name);
    if (kind) element.className = kind;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const openPath = (node) => {
    for (let above = parentOf(node); above !== null; above = parentOf(above)) opened.add(above.id);
  };
  const marked = (text, word) => {
    const span = make("span", "text");
    const at = word ? text.toLowerCase().indexOf(word) : -1;
    if (at < 0 || text.toLowerCase().length !== text.length) {
      span.textContent = text;
      return span;
    }
    const from = Math.max(0, at - 40);
    span.append((from ? "…" : "") + text.slice(from, at));
    span.append(make("mark", "", text.slice(at, at + word.length)));
    span.append(text.slice(at + word.length));
    return span;
  };
  const meter = (value, label) => {
    const outer = make("span", "meter");
    const track = make("span", "track");
    const fill = make("span", "fill");
    fill.style.display = "block";
    fill.style.setProperty("--v", value === undefined ? 0 : Math.min(1, Math.max(0, value)));
    track.append(fill);
    outer.append(track, make("span", "value", label));
    return outer;
  };
  const fact = (list, name, value) => {
    if (value === undefined || value === "") return;
    list.append(make("dt", "", name), make("dd", "", value));
  };
  const probabilities = (score) => {
    const grid = make("div", "probs");
    for (const [label, p] of Object.entries(score.label_probs || {})) {
      const bar = meter(p, "").firstChild;
      bar.classList.add("track");
      const holder = make("span", "meter");
      holder.style.gridTemplateColumns = "1fr";
      holder.append(bar);
      grid.append(make("span", "", label), holder, make("span", "value", (100 * p).toFixed(0) + " %"));
    }
    return grid;
  };
  const scoreText = (score) => {
    const parts = [score.value === null ? "? (no value)" : String(+score.value.toFixed(4))];
    if (score.mass !== undefined) parts.push("mass " + score.mass.toFixed(2) + (score.mass < 0.2 ? " (low)" : ""));
    if (score.cached) parts.push("from an equal state");
    if (score.error) parts.push(score.error);
    return parts.join(" · ");
  };
  const detail = (node) => {
    const panel = make("div", "detail");
    panel.style.setProperty("--d", Math.min(node.d, 12));
    if (node.think) panel.append(make("div", "think", node.think));
    panel.append(make("div", "full", node.full || node.t));
    const list = make("dl");
    fact(list, "status", node.s + (node.why ? ": " + node.why : ""));
    fact(list, "ended by", node.fin);
    fact(list, "same as", node.dup);
    if (node.lock) fact(list, "locked", "yes, by the user");
    if (node.tok) fact(list, "tokens", `${node.tok[2]} written · ${node.tok[0]} before it, ${node.tok[1]} of them cached`);
    if (node.pg) fact(list, "pages", `${node.pg[0]} viewed, ${node.pg[1]} of them shared`);
    for (const score of node.scores || []) fact(list, "score, " + score.kind, scoreText(score));
    panel.append(list);
    for (const score of node.scores || []) if (score.label_probs) panel.append(probabilities(score));
    return panel;
  };
  const row = (node, word) => {
    const line = make("div", "row " + node.s + (node.best ? " best" : ""));
    line.setAttribute("role", "treeitem");
    line.setAttribute("aria-level", node.d + 1);
    line.setAttribute("aria-selected", String(node.id === selected));
    line.dataset.id = node.id;
    line.style.setProperty("--d", Math.min(node.d, 12));
    if (node.n) line.setAttribute("aria-expanded", String(kept !== null || opened.has(node.id)));
    const twist = node.n ? make("button", "twist", "▶") : make("span", "twist");
    if (node.n) {
      twist.type = "button";
      twist.tabIndex = -1;
      twist.setAttribute("aria-label", "open or close " + node.id);
    }
    const sign = make("span", "sign", run.glyphs[node.s]);
    sign.title = node.s;
    line.append(twist, sign, make("span", "id", node.id), marked(node.t.replace(/\s+/g, " "), word));
    line.append(node.asked ? meter(node.v, node.v === undefined ? "?" : node.v.toFixed(2)) : make("span"));
    return line;
  };
  const draw = () => {
    const word = find.value.trim().toLowerCase();
    const out = document.createDocumentFragment();
    const stack = nodes.length ? [{ node: nodes[0] }] : [];
    while (stack.length) {
      const { node, rest } = stack.pop();
      if (rest !== undefined) {
        const more = make("div", "more");
        more.style.setProperty("--d", Math.min(node.d, 12));
        const button = make("button", "", `show ${Math.min(CHUNK, rest)} more of ${rest}`);
        button.type = "button";
        button.dataset.more = node.id;
        more.append(button);
        out.append(more);
        continue;
      }
      out.append(row(node, word));
      if (detailed.has(node.id)) out.append(detail(node));
      if (kept === null && !opened.has(node.id)) continue;
      let below = children.get(node.id) || [];
      if (kept !== null) below = below.filter((child) => kept.has(child.id));
      const limit = shown.get(node.id) || CHUNK;
      if (below.length > limit) stack.push({ node, rest: below.length - limit });
      for (const child of below.slice(0, limit).reverse()) stack.push({ node: child });
    }
    box.replaceChildren(out);
  };
  const filter = () => {
    const word = find.value.trim().toLowerCase();
    if (!word && !only.value) {
      kept = null;
      hits.textContent = "";
      draw();
      return;
    }
    kept = new Set();
    let count = 0;
    for (const node of nodes) {
      if (only.value && node.s !== only.value) continue;
      if (word && !node.t.toLowerCase().includes(word) && node.id !== word) continue;
      count += 1;
      for (let here = node; here !== null && !kept.has(here.id); here = parentOf(here)) kept.add(here.id);
    }
    hits.textContent = count === 1 ? "1 node" : count.toLocaleString("en") + " nodes";
    draw();
  };
  const toggle = (id, open) => {
    if (open === undefined ? opened.has(id) : !open) opened.delete(id);
    else opened.add(id);
  };
  const select = (id, scroll) => {
    selected = id;
    draw();
    const line = [...box.querySelectorAll(".row")].find((one) => one.dataset.id === id);
    if (line && scroll) line.scrollIntoView({ block: "nearest" });
  };
  box.addEventListener("click", (event) => {
    const more = event.target.closest("[data-more]");
    if (more) {
      shown.set(more.dataset.more, (shown.get(more.dataset.more) || CHUNK) + CHUNK);
      draw();
      return;
    }
    const line = event.target.closest(".row");
    if (!line) return;
    const id = line.dataset.id;
    if (event.target.closest("button.twist")) toggle(id);
    else if (detailed.has(id)) detailed.delete(id);
    else detailed.add(id);
    select(id, false);
  });
  box.addEventListener("keydown", (event) => {
    const lines = [...box.querySelectorAll(".row")].map((line) => line.dataset.id);
    const at = lines.indexOf(selected);
    const node = nodes[byId.get(selected)];
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowDown" || event.key === "j") select(lines[Math.min(at + 1, lines.length - 1)], true);
    else if (event.key === "ArrowUp" || event.key === "k") select(lines[Math.max(at - 1, 0)], true);
    else if (event.key === "ArrowRight" || event.key === "l") { if (node.n) toggle(node.id, true); select(node.id, true); }
    else if (event.key === "ArrowLeft" || event.key === "h") {
      if (opened.has(node.id)) { toggle(node.id, false); select(node.id, true); }
      else if (parentOf(node)) select(parentOf(node).id, true);
    } else if (event.key === "Enter" || event.key === " ") {
      if (detailed.has(node.id)) detailed.delete(node.id); else detailed.add(node.id);
      select(node.id, true);
    } else return;
    event.preventDefault();
  });
  find.addEventListener("input", filter);
  only.addEventListener("change", filter);
  const reset = () => { find.value = ""; only.value = ""; kept = null; hits.textContent = ""; };
  document.getElementById("open").addEventListener("click", () => {
    reset();
    for (const node of nodes) if (node.n) opened.add(node.id);
    draw();
  });
  document.getElementById("close").addEventListener("click", () => { reset(); opened.clear(); draw(); });
  const showBest = () => {
    reset();
    opened.clear();
    for (const node of nodes) if (node.best) { openPath(node); if (node.n) opened.add(node.id); }
    const last = nodes.filter((node) => node.best).pop();
    if (last) selected = last.id;
    draw();
  };
  document.getElementById("best").addEventListener("click", showBest);
  if (nodes.length <= 120) for (const node of nodes) opened.add(node.id);
  else for (const node of nodes) if (node.best) { openPath(node); opened.add(node.id); }
  if (nodes.length && !opened.size) opened.add(nodes[0].id);
  draw();
})();
