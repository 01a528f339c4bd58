// @ts-check
/** The bar that shows whether a training fits in memory: icon, colour, text, a meter, and a button for a suggestion. */

import { button, element, fill, mark, write } from "../page/dom.mjs";
import { inOneText, t } from "../page/words.mjs";
import { details, fullest, headline, routesText, suggestionText } from "./sentences.mjs";
import { standingText } from "./standing.mjs";

/** @typedef {import("./sentences.mjs").Plan} Plan @typedef {import("./sentences.mjs").Settings} Settings */

const ICONS = { fits: "✓", short: "✗", open: "…" };

export class FitBar {
  /**
   * @param {{ apply: (settings: Settings) => void, able: (settings: Settings) => boolean, changed: () => void,
   *   brief?: boolean, split?: boolean }} page `brief`: without details, empty without a plan; `split`: with the split mode
   *   that auto chose, and the reason; `able`: whether the canvas has the widgets of a suggestion; `changed` is called when the
   *   bar's height may have changed
   */
  constructor({ apply, able, changed, brief = false, split = false }) {
    this.brief = brief;
    this.split = split;
    this.apply = apply;
    this.able = able;
    this.changed = changed;
    this.icon = element("span", { class: "wan-fit-icon", "aria-hidden": "true" });
    this.line = element("span", { role: "status" });
    this.needed = element("span", { class: "wan-fit-needed" });
    this.meter = element(
      "div",
      { class: "wan-meter", role: "meter", "aria-valuemin": 0, "aria-valuemax": 100 },
      this.needed,
    );
    this.routes = element("div", { class: "wan-routes", role: "img", hidden: true });
    this.about = element("p", { class: "wan-hint" });
    this.buttons = element("div", { class: "wan-fit-buttons" });
    this.element = element(
      "details",
      { class: "wan-fit", "aria-label": t("Memory before training"), hidden: true },
      element("summary", { class: "wan-fit-line" }, this.icon, this.line),
      this.meter,
      this.routes,
      this.buttons,
      this.about,
    );
  }

  hide() {
    if (this.element.hidden) return;
    this.element.hidden = true;
    this.changed();
  }

  /** Marks the shown plan as outdated: widgets have changed. */
  wait() {
    mark(this.element, "aria-busy", "true");
  }

  /** @param {string} reason */
  fail(reason) {
    if (this.brief) this.hide();
    else this.say("open", t("Not planned: {reason}", { reason }));
  }

  /** @param {Plan} plan @param {boolean} looking whether the server still searches for suggestions */
  show(plan, looking) {
    this.say(plan.fits ? "fits" : "short", headline(plan));
    const place = fullest(plan);
    const part = Math.round(100 * Math.min(1, (place?.needed ?? 0) / (place?.room || 1)));
    this.needed.style.setProperty("--wan-share", `${part}%`);
    mark(this.meter, "aria-label", t("Memory before training"));
    mark(this.meter, "aria-valuenow", String(part));
    mark(this.meter, "aria-valuetext", headline(plan));
    this.meter.hidden = false;
    this.draw(plan.routes);
    const more = looking ? [t("Searching for settings that fit …")] : [];
    const all = inOneText([...details(plan), ...more]);
    const chosen = this.split && !plan.cards ? (plan.placement?.chosen ?? "") : "";
    write(this.about, this.brief ? chosen : all);
    this.about.hidden = this.brief && !chosen;
    this.element.title = this.brief ? all : "";
    const offers = (plan.suggestions ?? []).filter((one) => suggestionText(one) && this.able(one));
    fill(this.buttons, ...offers.map((settings) => this.offer(settings)));
    this.buttons.hidden = !offers.length;
    this.changed();
  }

  /** A bar for each layer; its height is the layer's share of the tokens. @param {Plan["routes"]} routes */
  draw(routes) {
    this.routes.hidden = this.brief || !routes;
    if (!routes) return;
    mark(this.routes, "aria-label", routesText(routes));
    const bars = routes.kept.map(() => element("span"));
    bars.forEach((bar, layer) => {
      bar.style.setProperty("--wan-share", `${100 * routes.kept[layer]}%`);
    });
    fill(this.routes, ...bars);
  }

  /** @param {Settings} settings */
  offer(settings) {
    const names = Object.entries(settings).map(([name, value]) => `${name}: ${value}`);
    return button(suggestionText(settings), names.join(", "), () => this.apply(settings));
  }

  /** @param {keyof typeof ICONS} state @param {string} text */
  say(state, text) {
    // A new state opens or closes the details; otherwise the user's choice stays.
    if (this.element.dataset.state !== state) this.element.open = this.brief || state === "short";
    mark(this.element, "data-state", state);
    mark(this.element, "aria-busy", "false");
    write(this.icon, ICONS[state]);
    write(this.line, text);
    for (const part of [this.meter, this.routes, this.about, this.buttons]) part.hidden = true;
    this.element.hidden = false;
    this.changed();
  }
}

/** @typedef {import("./standing.mjs").Standing} Standing */

export class RunLine {
  /** @param {() => void} changed called when the bar's height may have changed */
  constructor(changed) {
    this.changed = changed;
    this.element = element("section", {
      class: "wan-standing",
      role: "status",
      hidden: true,
    });
  }

  /** @param {Standing | null} run @param {import("./standing.mjs").Titles} title */
  show(run, title) {
    const text = run ? standingText(run, title) : "";
    if (text === this.element.textContent) return;
    mark(this.element, "aria-label", t("The run of this name"));
    mark(this.element, "data-action", run?.action ?? "");
    write(this.element, text);
    this.element.hidden = !text;
    this.changed();
  }
}
