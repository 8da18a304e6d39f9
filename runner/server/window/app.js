// The window: shows what the server tells. Every text from outside is put in as text, never as markup.

import { KEY, ask, byId, bytes, drawn, duration, el, events, number, percent, put, select, sleep, words } from "./tools.js";
import { answer, control, isAnswer, play, watchRun } from "./run.js";

/** Shows what the server tells, for as long as the page is open. */
async function follow() {
  for (let wait = 500; ; wait = Math.min(wait * 2, 10e3)) {
    try {
      const response = await ask("/window/events");
      if (response.status === 401) return askForKey();
      if (!response.ok) throw new Error(`status ${response.status}`);
      isLinked(true, "Live");
      wait = 500;
      for await (const [name, data] of events(response)) if (name === "state") show(data);
    } catch (error) {
      console.info(error);
    }
    isLinked(false, "No connection; trying again …");
    await sleep(wait);
  }
}

function isLinked(is, text) {
  byId("link").classList.toggle("off", !is);
  put(byId("link"), text);
  byId("forget").hidden = !sessionStorage.getItem(KEY);
}

function askForKey() {
  const isWrong = sessionStorage.getItem(KEY) !== null;
  sessionStorage.removeItem(KEY);
  isLinked(false, isWrong ? "The server rejected this key" : "A key is needed");
  byId("key").hidden = false;
  byId("window").hidden = true;
  byId("key-text").focus();
}

// ---- What is shown

const memories = new Map();
const requests = new Map();
const turns = [];
const MOST_TURNS = 500;
let sort = { by: "name", down: false };
let watching = false;

function show(state) {
  if (state.full) {
    for (const list of [memories, requests]) list.clear();
    turns.length = 0;
    document.querySelectorAll("#memories tbody, #past tbody, #requests").forEach((list) => list.replaceChildren());
  }
  document.body.classList.toggle("watches", watching || Boolean(state.watch));
  if (state.watch && !watching) {
    watching = true;
    openTab("run");
    watchRun();
  }
  if (state.totals) showTotals(state.totals);
  if (state.memories || state.gone || state.full) showMemories(state.memories ?? [], state.gone ?? []);
  if (state.requests) showRequests(state.requests);
  if (state.past || state.full) showTurns(state.past ?? []);
}

function showTotals({ memory_bytes, budget_bytes, at_work, waiting, spent, models, is_keyed }) {
  put(byId("t-memory"), bytes(memory_bytes));
  put(byId("t-budget"), `of ${bytes(budget_bytes)}${is_keyed ? ", shared" : ""}`);
  byId("t-meter").style.width = `${Math.min(100, (100 * memory_bytes) / (budget_bytes || 1))}%`;
  put(byId("t-work"), number(at_work));
  put(byId("t-waiting"), number(waiting));
  const all = spent.reused + spent.computed;
  put(byId("t-reused"), all ? `${percent(spent.reused, all)} %` : "–");
  put(byId("t-computed"), all ? `${number(spent.reused)} : ${number(spent.computed)} in ${number(spent.turns)} ${spent.turns === 1 ? "turn" : "turns"}` : "");
  byId("t-share").style.width = `${(100 * spent.reused) / (all || 1)}%`;
  const shown = JSON.stringify(models);
  if (byId("t-models").dataset.shown === shown) return;
  byId("t-models").dataset.shown = shown;
  const listed = models.map(({ name, is_open }) => el("span", is_open ? "open" : "closed", words("b", "", name), is_open ? " open" : " closed"));
  byId("t-models").replaceChildren(...listed);
}

/** A name that can be seen. */
const nameOf = (name) => (/^\s*$/.test(name) ? "(no name)" : name);

// Memories: a row each, changed in place.

function memoryRow(memory) {
  const row = el("tr");
  const shown = words("span", "shown", "");
  const name = el("th", "name", shown);
  name.scope = "row";
  if (memory.run !== null) name.append(" ", words("span", "of", memory.run));
  const share = el("i");
  const cells = { tokens: el("td", "n"), hot: el("span", "share"), bytes: el("td", "n"), disk: el("td", "disk"), state: el("td", "state") };
  const hot = el("td", "hot", el("span", "meter", share), cells.hot);
  row.append(name, words("td", "model", memory.model), cells.tokens, hot, cells.bytes, cells.disk, cells.state);
  return { row, share, cells, name, shown, memory };
}

function showMemories(changed, gone) {
  const body = document.querySelector("#memories tbody");
  for (const id of gone) {
    memories.get(id)?.row.remove();
    memories.delete(id);
  }
  for (const memory of changed) {
    if (!memories.has(memory.id)) memories.set(memory.id, memoryRow(memory));
    const shown = memories.get(memory.id);
    shown.memory = memory;
    put(shown.shown, nameOf(memory.name));
    shown.name.title = `${memory.name} (${memory.id.split("\u001f").pop()})`;
    put(shown.cells.tokens, number(memory.tokens));
    put(shown.cells.hot, `${percent(memory.hot, memory.tokens)} %`);
    put(shown.cells.bytes, bytes(memory.bytes));
    put(shown.cells.disk, memory.is_saved ? "yes" : memory.is_saved === false ? "not yet" : "–");
    put(shown.cells.state, memory.is_at_work ? "active" : "");
    shown.share.style.width = `${percent(memory.hot, memory.tokens)}%`;
    shown.row.classList.toggle("working", memory.is_at_work);
    shown.row.classList.toggle("unsaved", !memory.is_saved);
    shown.row.classList.toggle("resting", memory.bytes === 0);
  }
  // In order, moving only rows that are out of their place.
  const value = ({ memory }) => (sort.by === "hot" ? memory.hot / (memory.tokens || 1) : memory[sort.by]);
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : Number(a) - Number(b));
  const ordered = [...memories.values()].sort((a, b) => {
    const order = compare(value(a), value(b));
    return (sort.down ? -order : order) || compare(a.memory.name, b.memory.name) || compare(a.memory.id, b.memory.id);
  });
  let at = body.firstChild;
  for (const { row } of ordered) {
    if (row === at) at = at.nextSibling;
    else body.insertBefore(row, at);
  }
  filter();
}

byId("memories").tHead.addEventListener("click", ({ target }) => {
  const by = target.dataset?.sort;
  if (!by) return;
  sort = { by, down: sort.by === by ? !sort.down : !["name", "model"].includes(by) };
  for (const head of byId("memories").tHead.rows[0].cells) head.removeAttribute("aria-sort");
  target.parentNode.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
  showMemories([], []);
});

// Requests: a place each, the words growing at their end.

function requestPlace(request) {
  const place = { name: words("b", "name", ""), about: words("span", "about", ""), stage: el("span", "stage"), bar: el("progress"), text: words("p", "words", "") };
  place.item = el("li", "", el("p", "head", place.name, place.about, place.stage), place.bar, place.text);
  place.began = performance.now() - request.age_ms;
  place.bar.hidden = true;
  place.bar.setAttribute("aria-label", "Prompt read");
  return place;
}

/** A text that ends as `end` does and keeps what it began with, so that its lines stay where they are. */
function grown(text, end) {
  const at = text.lastIndexOf(end.slice(0, 60));
  const whole = at >= 0 && end.startsWith(text.slice(at)) ? text.slice(0, at) + end : end;
  return whole.length > 6000 ? whole.slice(-2000) : whole;
}

function showRequests(all) {
  const list = byId("requests");
  const present = new Set(all.map(({ id }) => id));
  for (const [id, { item }] of requests) {
    if (present.has(id)) continue;
    item.remove();
    requests.delete(id);
  }
  for (const request of all) {
    if (!requests.has(request.id)) {
      requests.set(request.id, requestPlace(request));
      list.append(requests.get(request.id).item);
    }
    const place = requests.get(request.id);
    place.request = request;
    put(place.name, request.name || "a new memory");
    put(place.about, `${request.model} · ${request.route}`);
    const { stage, done, total } = request.stage;
    place.bar.hidden = stage !== "reading";
    if (stage === "reading") [place.bar.max, place.bar.value] = [Math.max(1, total), done];
    place.item.className = stage;
    if (request.text) put(place.text, grown(place.text.textContent, request.text));
  }
  put(byId("n-requests"), all.length ? number(all.length) : "");
  byId("no-requests").hidden = all.length > 0;
  tickRequests();
}

function tickRequests() {
  for (const { request, stage, began } of requests.values()) {
    const { stage: at, done, total } = request.stage;
    const what = at === "reading" ? `reading ${number(done)} of ${number(total)}` : at === "speaking" ? "generating" : "waiting";
    put(stage, `${what} · ${Math.floor((performance.now() - began) / 1e3)} s`);
  }
}

// Turns: a row each, and a strip of all of them.

const KINDS = ["cold", "diverge", "prefix", "extend", "exact"];
const parts = (turn) => [
  [turn.source === "disk" ? "warm" : "hot", turn.reused],
  ["recomputed", turn.recomputed],
  ["prefilled", turn.prefilled],
  ["generated", turn.generated],
];
const tokens = (turn) => turn.reused + turn.recomputed + turn.prefilled + turn.generated;

function turnRow(turn) {
  const bar = el("span", "bar");
  for (const [kind, n] of parts(turn)) {
    if (!n) continue;
    const part = el("i", `k-${kind}`);
    part.style.setProperty("--n", n);
    bar.append(part);
  }
  const name = words("td", "name", nameOf(turn.name));
  name.title = turn.memory;
  const kind = el("td", "kind", el("i", `swatch m-${KINDS.includes(turn.match) ? turn.match : "cold"}`), ` ${turn.match}`);
  const computed = turn.prefilled + turn.recomputed;
  const cell = (text, more = "") => el("td", `n ${more}`, text);
  const before = [el("td", "number", number(turn.number)), kind, name, el("td", "bars", bar)];
  const figures = [cell(number(turn.reused)), cell(number(computed)), cell(number(turn.generated), "said"), cell(duration(turn.ttft_ms), "ttft")];
  const row = el("tr", "", ...before, ...figures);
  // Said, since a row that is laid out on two lines is no table's to a browser.
  row.setAttribute("role", "row");
  for (const cell of row.cells) cell.setAttribute("role", "cell");
  return row;
}

function showTurns(past) {
  const body = document.querySelector("#past tbody");
  const news = past.slice(-MOST_TURNS).map((turn) => ({ turn, row: turnRow(turn) }));
  turns.push(...news);
  body.prepend(...news.map(({ row }) => row).reverse());
  for (const { row } of turns.splice(0, turns.length - MOST_TURNS)) row.remove();
  byId("past").style.setProperty("--most", Math.max(1, ...turns.map(({ turn }) => tokens(turn))));
  filter();
  drawStrip();
}

const STRIP = { tokens: 96, lane: 14, gap: 6, ms: 40 }; // as in the style sheet
let stripTurns = [];

function drawStrip() {
  const strip = byId("strip");
  if (!strip.clientWidth) return;
  const n = Math.min(MOST_TURNS, Math.max(40, Math.floor(strip.clientWidth / 4)));
  stripTurns = turns.slice(-n).map(({ turn }) => turn);
  const lanes = STRIP.tokens + STRIP.gap;
  const first = lanes + KINDS.length * STRIP.lane + STRIP.gap;
  const paths = new Map();
  const rect = (kind, x, y, height) => paths.set(kind, `${paths.get(kind) ?? ""}M${x + 0.1} ${y.toFixed(1)}h.8v${height.toFixed(1)}h-.8z`);
  const most = Math.max(1, ...stripTurns.map(tokens));
  const mostMs = Math.max(1, ...stripTurns.map((turn) => turn.ttft_ms ?? 0));
  stripTurns.forEach((turn, at) => {
    const x = n - stripTurns.length + at;
    let y = STRIP.tokens;
    for (const [kind, count] of parts(turn)) {
      const height = (count / most) * STRIP.tokens;
      y -= height;
      if (height > 0) rect(`k-${kind}`, x, y, height);
    }
    rect(`m-${turn.match}`, x, lanes + Math.max(0, KINDS.indexOf(turn.match)) * STRIP.lane + 3, STRIP.lane - 6);
    const height = ((turn.ttft_ms ?? 0) / mostMs) * STRIP.ms;
    rect("ms", x, first + STRIP.ms - height, height);
  });
  strip.setAttribute("viewBox", `0 0 ${n} ${first + STRIP.ms}`);
  strip.replaceChildren(...[...paths].map(([kind, d]) => drawn("path", { class: kind, d })));
  put(byId("most-tokens"), `to ${number(most)}`);
  put(byId("most-ms"), `to ${duration(mostMs)}`);
}

byId("strip").addEventListener("pointermove", ({ offsetX, currentTarget }) => {
  const n = currentTarget.viewBox.baseVal.width;
  const turn = stripTurns[Math.floor((offsetX / currentTarget.clientWidth) * n) - (n - stripTurns.length)];
  const told = turn && `Turn ${number(turn.number)}, ${turn.name}: ${turn.match}, ${number(turn.reused)} reused, ${number(turn.prefilled + turn.recomputed)} computed, ${number(turn.generated)} generated, first token after ${duration(turn.ttft_ms)}`;
  put(byId("pointed"), told ?? "");
});
new ResizeObserver(drawStrip).observe(byId("strip"));

// Search: rows that don't have the text are hidden.

function filter() {
  const text = byId("search").value.trim().toLowerCase();
  const sift = (all, of, count, none) => {
    let n = 0;
    for (const item of all) {
      const fits = !text || of(item).toLowerCase().includes(text);
      if (item.row.hidden === fits) item.row.hidden = !fits;
      n += fits;
    }
    put(byId(count), text ? `${number(n)} of ${number(all.length)}` : all.length ? number(all.length) : "");
    byId(none).hidden = all.length > 0;
  };
  sift([...memories.values()], ({ memory }) => `${memory.name} ${memory.id} ${memory.is_at_work ? "active" : ""}`, "n-memories", "no-memories");
  sift(turns, ({ turn }) => `${turn.name} ${turn.memory} ${turn.model} ${turn.match}`, "n-turns", "no-turns");
}

// ---- Tabs, keys, the form

function openTab(id) {
  for (const tab of byId("tabs").children) {
    const is = tab.getAttribute("aria-controls") === id;
    select(tab, is);
    byId(tab.getAttribute("aria-controls")).hidden = !is;
  }
  byId("search").hidden = id === "run";
  drawStrip();
}

byId("tabs").addEventListener("click", ({ target }) => {
  const tab = target.closest("[role=tab]");
  if (tab) openTab(tab.getAttribute("aria-controls"));
});
// The views of a run are tabs, too.
for (const list of [byId("tabs"), byId("views")]) {
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const tabs = [...list.children];
    const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
    next.click();
    next.focus();
    event.preventDefault();
  });
}
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, textarea");
  if (event.key === "Escape" && event.target === byId("search")) {
    byId("search").value = "";
    filter();
    byId("main").focus();
  }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || byId("window").hidden) return;
  const tab = byId("tabs").children[Number(event.key) - 1];
  if (tab) {
    openTab(tab.getAttribute("aria-controls"));
    tab.focus();
  }
  if (event.key === "/") {
    if (byId("search").hidden) openTab("now");
    byId("search").focus();
    event.preventDefault();
  }
});
byId("search").addEventListener("input", filter);
byId("play").addEventListener("submit", (event) => {
  event.preventDefault();
  play();
});
for (const id of ["pause", "step", "stop"]) byId(id).addEventListener("click", () => control(id));
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  answer(byId("ask-text").value);
});
byId("ask-text").addEventListener("keydown", (event) => {
  if (!isAnswer(event)) return;
  event.preventDefault();
  answer(byId("ask-text").value);
});
byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("key-text").value.trim());
  byId("key-text").value = "";
  byId("key").hidden = true;
  byId("window").hidden = false;
  follow();
});
byId("forget").addEventListener("click", () => {
  sessionStorage.removeItem(KEY);
  location.reload();
});
setInterval(tickRequests, 1000);
follow();
