// The state of the page, which is in the address behind the #, and the controls that change it.

const DEFAULTS = { ...DATA.state };
const TILE_CONTROLS = ["shape", "type", "swizzle", "major", "part", "cga"];
let state = readAddress(), tile = null, other = null, plane = null;

function readAddress() {
  const found = { ...DEFAULTS };
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (name in DEFAULTS) found[name] = value;
  return found;
}
function writeAddress() {
  if (location.protocol === "about:") return;  // inside of another page
  const changed = Object.entries(state).filter(([name, value]) => value !== DEFAULTS[name]);
  history.replaceState(null, "", changed.length ? `#${new URLSearchParams(changed)}` : location.pathname + location.search);
}
// The tile of the controls; `suffix` "2": the one on the right when two are compared.
function tileOf(suffix = "") {
  const given = DATA.given.find(({ name }) => name === state.given);
  if (given && !suffix) return given;
  const own = { ...state, ...(given && { shape: given.sizes.join("x"), type: `${given.bits}`, cga: "" }) };
  if (suffix) for (const name of TILE_CONTROLS) if (state[name + suffix] !== undefined) own[name] = state[name + suffix] || own[name];
  return describedTile(own);
}

function onSelect(point) {
  state.at = point.join(",");
  if (state.view === "compare") compareViews.forEach((view) => trySelect(view, point));
  else views[state.view].select?.(point, state);
  writeAddress();
}
function trySelect({ view, shown }, point) {
  if (point.length === shown().sizes.length && point.every((value, dim) => value < shown().sizes[dim])) view.select(point);
}

const compareViews = $$("#compare .side-by-side").map((root, i) => ({ root, view: planeView(root, onSelect), shown: () => (i ? other : tile) }));
const simple = planeView($("#layout"), onSelect);
const banksPanel = banksView($("#banks"), onSelect), operandPanel = operandView($("#descriptor"), onSelect);
const fragmentPanel = fragmentView($("#fragments")), tmaPanel = tmaView($("#tma")), tmemPanel = tmemView($("#tmem"));
const point = () => (state.at ? state.at.split(",").map(Number) : undefined);
const headed = ({ title, attribute }) => ({ title, text: attribute });

// What each view shows: returns the heading, and the text that can be copied.
const views = {
  layout: { show() { tile = tileOf(); plane = simple.show(tile, point()); drawLeading(); return headed(tile); }, select: (at) => simple.select(at) },
  banks: { show() { tile = tileOf(); banksPanel.show(tile, state, point()); return headed(tile); }, select: (at) => banksPanel.select(at, state) },
  descriptor: {
    show() {
      tile = state.value ? null : tileOf();
      operandPanel.show(tile, state, point());
      return tile ? headed(tile) : { title: `Descriptor ${state.value}`, text: state.value };
    },
    select: (at) => operandPanel.select(at),
  },
  fragments: { show() { const found = fragmentPanel.show(state); return { title: `Registers of ${found.name}`, text: found.instruction }; } },
  tma: { show() { tile = tileOf(); tmaPanel.show(tile, state); return headed(tile); } },
  tmem: { show() { const found = tmemPanel.show(state); return { title: found.title, text: found.instruction || "" }; } },
  compare: {
    show() {
      [tile, other] = [tileOf(), tileOf("2")];
      compareViews.forEach(({ view, shown, root }) => { view.show(shown(), point()); say(root, "attribute", shown().attribute); });
      return { title: `${tile.title} beside ${other.title}`, text: `${tile.attribute}\n${other.attribute}` };
    },
  },
};

// The dimensions that are not drawn, each with its coordinate.
function drawLeading() {
  const box = $(".leading");
  const others = plane.sizes.flatMap((size, dim) => (plane.axes.includes(dim) ? [] : [[dim, size]]));
  box.hidden = !others.length;
  box.replaceChildren(...others.map(([dim, size]) => {
    const line = document.createElement("label"), input = document.createElement("input");
    Object.assign(input, { type: "number", min: 0, max: size - 1, value: simple.point[dim] });
    input.addEventListener("input", () => {
      const value = Number(input.value);
      if (Number.isInteger(value) && value >= 0 && value < size) onSelect(simple.point.map((old, i) => (i === dim ? value : old)));
    });
    line.append(`${plane.names[dim]} = `, input, ` of ${size}`);
    return line;
  }));
}

const form = $(".controls");
function showControls() {
  for (const input of $$("[data-state]")) {
    const value = state[input.dataset.state];
    if (input.type === "radio") input.checked = value === input.value;
    else if (input !== document.activeElement || input.getAttribute("aria-invalid") !== "true") input.value = value;
  }
  form.hidden = ["fragments", "tmem"].includes(state.view) || (state.view === "descriptor" && Boolean(state.value));
  for (const name of TILE_CONTROLS) $$(`.controls [data-state="${name}"]`).forEach((node) => { node.closest(".control").classList.toggle("idle", Boolean(state.given)); });
}
function show(changed) {
  const named = $(`[role=tab][data-view-name="${state.view}"]`) ? state.view : "layout";
  state.view = named;
  for (const tab of $$("[role=tab]")) {
    const on = tab.dataset.viewName === named;
    tab.setAttribute("aria-selected", on);
    tab.tabIndex = on ? 0 : -1;
    $(`#${tab.dataset.viewName}`).hidden = !on;
  }
  if (named !== "tma") tmaPanel.hide();
  let said = "";
  try {
    const { title, text } = views[named].show();
    say(document, "heading", title);
    say(document, "copied-text", text || "");
    $(".copyable").hidden = !text;
    document.title = `${title} - ${$(`[data-view-name="${named}"]`).textContent}`;
  } catch (problem) {
    if (!(problem instanceof Error) || problem instanceof TypeError || problem instanceof ReferenceError) throw problem;
    said = problem.message;
  }
  say(document, "status", said);
  $(`#${named}`).classList.toggle("stale", Boolean(said));
  if (changed) changed.setAttribute("aria-invalid", Boolean(said));
  if (!said) $$("[aria-invalid=true]").forEach((node) => node.setAttribute("aria-invalid", false));
  showControls();
  writeAddress();
}

document.addEventListener("change", ({ target }) => {
  const name = target.dataset.state;
  if (!name) return;
  state[name] = target.value;
  if (TILE_CONTROLS.includes(name)) state.given = "";
  if (name === "given" && !target.value) state.at = "";
  show(target);
});
document.addEventListener("click", ({ target }) => {
  const tab = target.closest("[role=tab]");
  if (tab) { state.view = tab.dataset.viewName; show(); }
});
$("[role=tablist]").addEventListener("keydown", (event) => {
  const tabs = $$("[role=tab]"), step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const next = tabs[(tabs.findIndex((tab) => tab.dataset.viewName === state.view) + step + tabs.length) % tabs.length];
  state.view = next.dataset.viewName;
  show();
  next.focus();
});
async function copy(text) {
  try { await navigator.clipboard.writeText(text); } catch {  // a page from a file may not
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
$(".copy").addEventListener("click", async ({ target }) => {
  await copy($('[data-field="copied-text"]').textContent);
  target.textContent = "Copied";
  setTimeout(() => { target.textContent = "Copy"; }, 1500);
});
form.addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", () => { state = readAddress(); show(); });
show();
