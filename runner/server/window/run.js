// A run, drawn from its events alone, wherever they come from: `/v1/runs`, where this page plays one, or `/window/run`, where it plays in
// the process that serves the page.

import { ask as request, byId, drawn, el, events, number, put, select, sleep, words } from "./tools.js";

let run = null;

function beginRun() {
  run = { id: null, agents: new Map(), turns: new Map(), entries: new Map(), done: 0, phase: "", isPaused: false, asked: null };
  for (const id of ["lane-names", "graph", "views", "view", "results"]) byId(id).replaceChildren();
  for (const id of ["run-status", "run-error", "run-count"]) put(byId(id), "");
  put(byId("pause"), "Pause");
  byId("played").hidden = true;
  showControls(false);
  ask(null);
}

/** Takes an event of a run; true if it is the last one. */
function onRun(name, data) {
  if (name === "plan") planRun(data);
  if (name === "started") startTurn(data);
  if (name === "reading") readPrompt(data);
  if (name === "text") speak(data.path, data.agent, data.text);
  if (name === "asked") ask(data);
  if (name === "paused") pause(data.paused);
  if (name === "turn") endTurn(data);
  if (name === "result") {
    const value = typeof data.value === "string" ? data.value : JSON.stringify(data.value);
    byId("results").append(el("div", "", words("dt", "", data.name), words("dd", "", value)));
  }
  if (name === "done") put(byId("run-status"), `Done: ${number(run.done)} turns`);
  if (name === "stopped") put(byId("run-status"), `Stopped after ${number(run.done)} turns`);
  if (name === "error") put(byId("run-error"), data.message ?? "The run failed.");
  if (name === "error") put(byId("run-status"), "Failed");
  const isOver = ["done", "stopped", "error"].includes(name);
  if (isOver) {
    showControls(false);
    ask(null);
  }
  return isOver;
}

/** A turn's place in the graph; its width is between two bounds. */
const CELL = { least: 20, most: 72, height: 26, head: 22 };

function planRun({ run: id, phases = [], agents = [], edges = [] }) {
  beginRun();
  run.id = id;
  showControls(true);
  byId("played").hidden = false;
  addView("", "All agents");
  for (const { key, name } of agents) agentOf(key, name);
  let column = 0;
  const heads = [];
  for (const phase of phases) {
    const seen = new Map();
    for (const { path, agent } of phase.turns) {
      const nth = seen.get(agent) ?? 0;
      seen.set(agent, nth + 1);
      run.turns.set(path, { path, agent, phase: phase.name, lane: agentOf(agent, agent).lane, column: column + nth, state: "waiting" });
    }
    const n = Math.max(1, ...seen.values());
    heads.push({ name: phase.name, column, n });
    column += n;
  }
  drawGraph(column, heads, edges);
  countRun();
}

function agentOf(key, name) {
  if (!run.agents.has(key)) {
    const lane = run.agents.size;
    run.agents.set(key, { name, lane, view: addView(key, name) });
    byId("lane-names").append(words("p", `c${lane % 8}`, name));
  }
  return run.agents.get(key);
}

function drawGraph(columns, heads, edges) {
  const graph = byId("graph");
  const room = graph.parentNode.clientWidth - byId("lane-names").offsetWidth - 4;
  const cell = Math.min(CELL.most, Math.max(CELL.least, Math.floor(room / Math.max(1, columns))));
  const [width, height] = [columns * cell + 1, CELL.head + run.agents.size * CELL.height];
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) graph.setAttribute(name, value);
  for (const { name, column, n } of heads) {
    const x = column * cell + 0.5;
    drawn("path", { class: "edge-of-phase", d: `M${x} 0V${height}` }, graph);
    const most = Math.floor((n * cell - 6) / 6.2);
    const text = drawn("text", { x: x + 4, y: 14 }, graph);
    text.textContent = name.length <= most ? name : most > 1 ? `${name.slice(0, most - 1)}…` : "";
    drawn("title", {}, text).textContent = name;
  }
  const middle = ({ lane, column }) => [column * cell + cell / 2, CELL.head + lane * CELL.height + CELL.height / 2];
  let d = "";
  for (const [from, to] of edges) {
    const [a, b] = [run.turns.get(from), run.turns.get(to)];
    if (!a || !b) continue;
    const [[x, y], [u, v]] = [middle(a), middle(b)];
    d += `M${x} ${y}C${x + cell / 2} ${y} ${u - cell / 2} ${v} ${u} ${v}`;
  }
  drawn("path", { class: "heard", d }, graph);
  for (const turn of run.turns.values()) {
    const [x, y] = middle(turn);
    const node = drawn("g", { class: `node waiting c${turn.lane % 8}`, transform: `translate(${x} ${y})` }, graph);
    drawn("circle", { r: 6.5 }, node);
    drawn("circle", { r: 2.5, class: "core" }, node);
    turn.title = drawn("title", {}, node);
    turn.node = node;
    markTurn(turn, "waiting");
    node.addEventListener("click", () => openView(turn.agent, turn.path));
  }
}

function markTurn(turn, state) {
  turn.state = state;
  turn.node?.setAttribute("class", `node ${state} c${turn.lane % 8}`);
  if (turn.title) turn.title.textContent = `${turn.path}: ${state === "working" ? "active" : state}`;
}

function showStatus() {
  put(byId("run-status"), `${run.isPaused ? "Paused" : "Playing"}${run.phase ? `: ${run.phase}` : ""}`);
}

function countRun() {
  const all = [...run.turns.values()];
  const working = all.filter(({ state }) => state === "working").length;
  const told = `${number(run.done)} of ${number(all.length)} turns${working ? `, ${working} active` : ""}`;
  put(byId("run-count"), told);
  byId("graph").setAttribute("aria-label", told);
}

/** Whose words are shown: all of them, or what one agent heard and said. */
function addView(key, name) {
  const at = byId("views").children.length;
  const tab = words("button", at ? `c${(at - 1) % 8}` : "", name);
  const list = el("ol");
  Object.assign(tab, { type: "button", id: `view-${at}`, role: "tab", tabIndex: at ? -1 : 0 });
  tab.setAttribute("aria-selected", String(!at));
  tab.setAttribute("aria-controls", "view");
  tab.addEventListener("click", () => openView(key));
  list.hidden = at > 0;
  byId("views").append(tab);
  byId("view").append(list);
  if (!at) run.all = { tab, list };
  return { tab, list };
}

function openView(key, path) {
  const { tab, list } = key ? run.agents.get(key).view : run.all;
  for (const other of byId("views").children) select(other, other === tab);
  for (const other of byId("view").children) other.hidden = other !== list;
  byId("view").setAttribute("aria-labelledby", tab.id);
  const at = path && run.entries.get(path)?.own.item;
  if (at) at.scrollIntoView({ block: "nearest" });
  else byId("view").scrollTop = byId("view").scrollHeight;
}

/** The places of a turn's words: among everybody's, and in its agent's own view. */
function entryOf(path, key) {
  if (run.entries.has(path)) return run.entries.get(path);
  const agent = agentOf(key, key);
  const place = (list, label) => {
    const [text, read] = [words("p", "said", ""), el("small", "cost")];
    const item = el("li", `c${agent.lane % 8}`, label, text, read);
    item.title = path;
    list.append(item);
    return { item, text, read };
  };
  const entry = { everybody: place(run.all.list, words("b", "who", agent.name)), own: place(agent.view.list, el("b", "who", "says")) };
  run.entries.set(path, entry);
  const turn = run.turns.get(path);
  if (turn) markTurn(turn, "working");
  if (turn) run.phase = turn.phase;
  showStatus();
  countRun();
  return entry;
}

/** Changes the view; who looks at its end goes on looking at its end. */
function atEnd(change) {
  const view = byId("view");
  const was = view.scrollHeight - view.scrollTop - view.clientHeight < 40;
  change();
  if (was) view.scrollTop = view.scrollHeight;
}

function speak(path, key, text) {
  atEnd(() => {
    const { everybody, own } = entryOf(path, key);
    for (const place of [everybody, own]) {
      place.text.append(text);
      put(place.read, "");
    }
  });
}

function startTurn({ path, agent, reads }) {
  atEnd(() => {
    const { everybody, own } = entryOf(path, agent);
    if (!reads) return;
    own.item.before(el("li", "heard", el("b", "who", "reads"), words("p", "said", reads)));
    const shown = words("p", "said", reads);
    everybody.text.before(el("details", "reads", el("summary", "", "reads"), shown));
  });
}

function readPrompt({ path, agent, done, total }) {
  const { everybody, own } = entryOf(path, agent);
  for (const { read } of [everybody, own]) put(read, done < total ? `reading ${number(done)} of ${number(total)} tokens` : "");
}

function endTurn({ path, agent, text, usage }) {
  if (run.asked?.path === path) ask(null);
  atEnd(() => {
    const { everybody, own } = entryOf(path, agent);
    for (const place of [everybody, own]) {
      place.text.replaceChildren(text ?? "");
      place.item.classList.add("over");
    }
    if (usage) {
      const told = `${usage.match ?? ""}, ${number(usage.reused)} reused, ${number((usage.prefilled ?? 0) + (usage.recomputed ?? 0))} computed`;
      for (const { read } of [everybody, own]) put(read, told);
    }
    const turn = run.turns.get(path);
    if (turn?.state !== "done") run.done++;
    if (turn) markTurn(turn, "done");
    countRun();
  });
}

/** The message of a refusal. */
function messageOf(text) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text; // not in JSON: as it is
  }
}

let playing = null;

/** Plays what is written; where it goes wrong, the reason is shown. */
export async function play() {
  beginRun();
  playing = new AbortController();
  isPlaying(true);
  put(byId("run-status"), "Starting …");
  try {
    const headers = { "content-type": "application/yaml" };
    const response = await request("/v1/runs", { method: "POST", headers, body: byId("yaml").value, signal: playing.signal });
    if (response.ok) {
      let isOver = false;
      for await (const [name, data] of events(response)) isOver = onRun(name, data) || isOver;
      if (!isOver) onRun("error", { message: "The server ended the run." });
    } else {
      const message = messageOf(await response.text());
      onRun("error", { message: message || `The server answered with status ${response.status}.` });
    }
  } catch (error) {
    if (playing.signal.aborted) put(byId("run-status"), "Stopped");
    else onRun("error", { message: `The connection was lost: ${error.message}` });
  }
  isPlaying(false);
}

function isPlaying(is) {
  byId("start").hidden = is;
  showControls(is);
  if (!is) byId("start").focus();
}

// ---- Pause, step, stop, and a human's place

function showControls(are) {
  byId("controls").hidden = !are;
  // Before its plan is here, a run can only be stopped.
  for (const id of ["pause", "step"]) byId(id).hidden = !run?.id;
}

function pause(is) {
  run.isPaused = is;
  put(byId("pause"), is ? "Resume" : "Pause");
  showStatus();
}

/** What the server has against it; nothing: it is done. */
async function post(action, body = {}) {
  try {
    const headers = { "content-type": "application/json" };
    const response = await request(`/v1/runs/${run.id}/${action}`, { method: "POST", headers, body: JSON.stringify(body) });
    if (response.ok) return "";
    return messageOf(await response.text()) || `The server answered with status ${response.status}.`;
  } catch (error) {
    return `The connection was lost: ${error.message}`;
  }
}

/** Does what a button of the run says. */
export async function control(id) {
  if (id === "stop" && !run.id) return playing?.abort();
  const action = id === "pause" && run.isPaused ? "resume" : id;
  put(byId("run-error"), await post(action));
}

/** Asks the human who plays an agent, or nobody. */
function ask(question) {
  run.asked = question;
  byId("ask").hidden = !question;
  put(byId("ask-error"), "");
  byId("ask-text").value = "";
  if (!question) return;
  const { path, agent, reads, options = [], form } = question;
  if (!run.entries.has(path)) startTurn({ path, agent, reads });
  const { name } = agentOf(agent, agent);
  put(byId("ask-who"), `You speak as ${name}`);
  put(byId("ask-form"), form ? `An answer has this form: ${form}` : "");
  const chosen = options.map((option) => {
    const button = words("button", "", option);
    button.type = "button";
    button.addEventListener("click", () => answer(option));
    return button;
  });
  byId("ask-options").replaceChildren(...chosen);
  byId("ask-free").hidden = options.length > 0;
  openView(agent, path);
  (chosen[0] ?? byId("ask-text")).focus();
}

/** True for the key that sends an answer. */
export const isAnswer = ({ key, shiftKey, isComposing }) => key === "Enter" && !shiftKey && !isComposing;

export async function answer(text) {
  const asked = run.asked;
  if (!asked) return;
  const message = await post("answer", { path: asked.path, text });
  if (run.asked !== asked) return;
  if (message) put(byId("ask-error"), message);
  else ask(null);
}

/** Shows the run that plays in the process which serves the page. */
export async function watchRun() {
  for (let isOver = false; !isOver; ) {
    try {
      const response = await request("/window/run");
      beginRun();
      for await (const [name, data] of events(response)) isOver = onRun(name, data) || isOver;
    } catch (error) {
      console.info(error);
    }
    if (!isOver) await sleep(1000);
  }
}

