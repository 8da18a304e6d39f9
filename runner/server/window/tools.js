// What both parts of the window are made with: elements, figures, and the server's events.

export const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

/** An element with a class and children; texts are text. */
export function el(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** A text of somebody else's: it turns no other text around. */
export function words(tag, className, text) {
  const node = el(tag, className, text);
  node.dir = "auto";
  return node;
}

export function drawn(tag, attributes, parent) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  parent?.append(node);
  return node;
}

/** Puts a text in, if it is another. */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const number = (n) => Number(n ?? 0).toLocaleString("en-US");
export const percent = (part, whole) => (whole > 0 ? Math.floor((100 * part) / whole) : 0);

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; n >= 1000 && at < 4; at++) n /= 1024;
  return `${at === 0 || n >= 100 ? Math.round(n) : n >= 10 ? n.toFixed(1) : n.toFixed(2)} ${units[at]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms >= 180e3) return `${Math.round(ms / 60e3)} min`;
  if (ms >= 10e3) return `${(ms / 1e3).toFixed(1)} s`;
  if (ms >= 1e3) return `${(ms / 1e3).toFixed(2)} s`;
  return `${ms >= 10 ? Math.round(ms) : ms.toFixed(1)} ms`;
}

export const KEY = "greenroom-key";

export function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { accept: "text/event-stream", ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  return fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
}

/** The events of an answer: names and data. (An EventSource can't send a key.) */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      if (data.length && data[0] !== "[DONE]") yield [name, JSON.parse(data.join("\n"))];
    }
  }
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Marks a tab as the one that is open, or not. */
export function select(tab, is) {
  tab.setAttribute("aria-selected", String(is));
  tab.tabIndex = is ? 0 : -1;
}
