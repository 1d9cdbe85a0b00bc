// Small ways to build and to update elements. Foreign text only ever becomes text nodes and attributes.

export const byId = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  set(node, properties);
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function set(node, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name.startsWith("aria-") || name === "role" || name === "scope") node.setAttribute(name, value);
    else node[name] = value;
  }
}

// Touches the page only when the text is another, so that a selection in it survives.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Keeps one child per key and moves as little as possible, so that focus and transitions survive an update.
export function keyed(parent, items, { key, make, update }) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, position) => {
    const name = String(key(item));
    let child = before.get(name);
    before.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    update?.(child, item);
    if (parent.children[position] !== child) parent.insertBefore(child, parent.children[position] ?? null);
  });
  for (const child of before.values()) child.remove();
}

export function empty(text) {
  return el("p", { class: "empty" }, text);
}

export function table(columns, rows) {
  const head = el("tr", {}, ...columns.map((column) => el("th", { scope: "col", class: column.number ? "number" : "" }, column.title)));
  const body = rows.map((row) =>
    el("tr", {}, ...row.map((cell, place) => el("td", { class: columns[place].number ? "number" : columns[place].class ?? "" }, cell))),
  );
  return el("table", {}, el("thead", {}, head), el("tbody", {}, ...body));
}

export function pairs(node, entries) {
  keyed(node, entries, {
    key: ([name]) => name,
    make: ([name]) => el("div", {}, el("dt", {}, name), el("dd", {})),
    update: (child, [, value, title]) => {
      say(child.lastChild, value);
      child.title = title ?? "";
    },
  });
}
