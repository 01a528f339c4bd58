// @ts-check
/**
 * Hides inputs that the server marks as advanced, unless the user shows them, or their value is changed or linked. Vue nodes
 * support the mark, LiteGraph's canvas does not; this module works for both.
 */

import { element, mark, toggle, write } from "../page/dom.mjs";
import { kindOf, widgetsOf } from "../page/ids.mjs";
import { addWidget, fitted, showOnly, watchWidgets } from "../page/widget.mjs";
import { counted, t } from "../page/words.mjs";

/** @typedef {import("../page/graph.mjs").GraphNode} GraphNode */

/** Property of a node in a workflow: whether all its inputs are shown. */
const MORE = "wan_trainer_more";
/** Height of the button in pixels, margins included. */
const HIGH = 40;

export class MoreInputs {
  /**
   * @param {import("../page/pacing.mjs").Frames} frames
   * @param {() => boolean} always whether the user has chosen to show all inputs of all nodes
   */
  constructor(frames, always) {
    this.frames = frames;
    this.always = always;
    /** @type {WeakMap<GraphNode, { show: () => void, saved: number }>} `saved`: pixels of the hidden rows */
    this.shown = new WeakMap();
  }

  /** @param {GraphNode} node a new one, whose widgets still have their defaults */
  add(node) {
    const known = widgetsOf(kindOf(node));
    const widgets = (node.widgets ?? []).filter((one) => one.serialize !== false);
    const advanced = widgets.filter(({ name }) => known[name]?.advanced);
    if (!advanced.length || this.always()) return;
    for (const widget of advanced) if (widget.options) delete widget.options.advanced;
    const usual = new Map(advanced.map(({ name, value }) => [name, value]));
    const whole = node.computeSize?.()[1] ?? 0;
    const more = toggle("", t("Show or hide these settings"), false, (on) => {
      node.properties = { ...node.properties, [MORE]: on };
      show(true);
    });
    const place = element("div", { class: "wan-more" }, more);
    addWidget(node, place, { name: MORE, least: () => HIGH, most: () => HIGH });
    const show = (exact = false) => {
      const on = node.properties?.[MORE] === true;
      const linked = new Set(
        (node.inputs ?? [])
          .filter((one) => (one.link ?? null) !== null)
          .map((one) => one.widget?.name),
      );
      const less = advanced
        .filter(({ name, value }) => value === usual.get(name) && !linked.has(name))
        .map(({ name }) => name);
      const names = widgets.map(({ name }) => name);
      const wanted = new Set(on ? names : names.filter((name) => !less.includes(name)));
      fitted(node, exact, () => showOnly(node, widgets, wanted));
      mark(more, "aria-pressed", String(on));
      write(
        more,
        on ? t("Fewer settings") : counted(less.length, "1 more setting", "{n} more settings"),
      );
    };
    watchWidgets(
      node,
      () => true,
      () => this.ask(node),
    );
    show(true);
    // One frame later, after the workflow's values were loaded into the node.
    const drawn = () => {
      show();
      node.properties = { [MORE]: false, ...node.properties };
    };
    this.shown.set(node, { show: drawn, saved: whole - (node.computeSize?.()[1] ?? 0) });
    this.ask(node);
  }

  /** Called after a workflow was loaded: reduces the height of a node saved when all inputs were shown. @param {GraphNode} node */
  loaded(node) {
    const known = this.shown.get(node);
    if (!known) return;
    const [width, height] = node.size ?? [0, 0];
    if (node.properties?.[MORE] === undefined) node.setSize?.([width, height - known.saved]);
    known.show();
  }

  /** @param {GraphNode} node */
  ask(node) {
    const known = this.shown.get(node);
    if (known) this.frames.ask(known.show);
  }
}
