// @ts-check
/** Search field and group buttons below a node's settings, and a list of changed settings, each with a reset button. */

import { button, element, fill, mark, toggle, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { elsewhere, GROUPS, groupTitle, isChanged, isShown } from "./groups.mjs";

/** @typedef {import("./groups.mjs").Setting} Setting */

const LONGEST = 18;

export class Finder {
  /**
   * @param {{ changed: () => void, reset: (name: string) => void, titleOf: (kind: string) => string,
   *   widgetsOf: (kind: string) => string[] }} node `changed` is called when other settings are shown; `titleOf` returns the
   *   title of a class of nodes
   */
  constructor({ changed, reset, titleOf, widgetsOf }) {
    this.changed = changed;
    this.titleOf = titleOf;
    this.widgetsOf = widgetsOf;
    this.reset = reset;
    /** @type {Set<string>} */
    this.open = new Set();
    this.search = element("input", {
      type: "search",
      placeholder: t("Find a setting"),
      "aria-label": t("Find a setting"),
      oninput: () => changed(),
      // Keeps the key from the page's shortcuts (delete a node, run).
      onkeydown: (/** @type {KeyboardEvent} */ event) => event.stopPropagation(),
    });
    this.groups = Object.fromEntries(
      GROUPS.map((group) => [
        group,
        toggle(groupTitle(group), t("Show or hide these settings"), false, (on) =>
          this.turn(group, on),
        ),
      ]),
    );
    this.count = element("span", { class: "wan-hint", role: "status" });
    this.elsewhere = element("p", { class: "wan-hint", role: "status" });
    this.back = element("div", { class: "wan-changes" });
    this.element = element(
      "section",
      { class: "wan-card", "data-card": "settings", "aria-label": t("Settings") },
      element("div", { class: "wan-find" }, this.search, this.count),
      this.elsewhere,
      element("div", { class: "wan-groups" }, ...Object.values(this.groups)),
      this.back,
    );
  }

  /** @param {string} group @param {boolean} on */
  turn(group, on) {
    if (on) this.open.add(group);
    else this.open.delete(group);
    this.search.value = "";
    this.changed();
  }

  /** @param {Setting[]} settings @returns {Set<string>} names of the shown settings */
  show(settings) {
    const view = { open: this.open, query: this.search.value };
    const shown = settings.filter((one) => isShown(one, view));
    const changed = settings.filter(isChanged);
    write(this.count, t("{n} of {all} shown", { n: shown.length, all: settings.length }));
    const other = elsewhere(this.search.value, this.widgetsOf);
    write(
      this.elsewhere,
      other ? t("{name} is in {node}.", { name: other.name, node: this.titleOf(other.kind) }) : "",
    );
    this.elsewhere.hidden = !other;
    const searched = this.search.value.trim() !== "";
    for (const [group, made] of Object.entries(this.groups)) {
      const marks = changed.filter((one) => one.group === group).length;
      write(made, marks ? `${groupTitle(group)} ●${marks}` : groupTitle(group));
      mark(made, "aria-pressed", String(this.open.has(group) && !searched));
    }
    const key = JSON.stringify(changed.map(({ name, value }) => [name, value]));
    if (key !== this.key) {
      this.key = key;
      const ways = changed.map((one) => this.way(one));
      fill(this.back, changed.length ? t("Changed from the default:") : "", ...ways);
      this.back.hidden = !changed.length;
    }
    return new Set(shown.map(({ name }) => name));
  }

  /** @param {Setting} setting */
  way({ name, value, usual }) {
    const title = t("Set {name} back to {value}", { name, value: said(usual) });
    return button(`● ${name} ${said(value)} ↺`, title, () => this.reset(name));
  }
}

/** @param {unknown} value */
function said(value) {
  const text = String(value === "" ? '""' : value).replaceAll("\n", " ");
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
}
