// @ts-check
/** Makes nodes with many settings show the first ones, changed ones, and open groups only. */

import { idHere, kindOf, widgetsOf } from "../page/ids.mjs";
import { addWidget, MARGINS, showOnly, watchWidgets } from "../page/widget.mjs";
import { Finder } from "./finder.mjs";
import { FIRST, groupTitle, knownGroup } from "./groups.mjs";

/** @typedef {import("../page/graph.mjs").GraphNode} GraphNode */

const KINDS = ["WanTrainSettings"];
/** Property of a node in a workflow: its open groups. */
const OPEN = "wan_trainer_open";

export class SettingNodes {
  /** @param {import("../page/pacing.mjs").Frames} frames */
  constructor(frames) {
    this.frames = frames;
    /** @type {WeakMap<GraphNode, Finder>} */
    this.finders = new WeakMap();
    /** Node -> its redraw function. @type {WeakMap<GraphNode, () => void>} */
    this.shown = new WeakMap();
  }

  /** @param {GraphNode} node a new one, whose widgets still have their defaults */
  add(node) {
    if (!KINDS.includes(kindOf(node))) return;
    const widgets = (node.widgets ?? []).filter((widget) => widget.serialize !== false);
    const usual = new Map(widgets.map(({ name, value }) => [name, value]));
    const known = widgetsOf(kindOf(node));
    const groups = new Map(widgets.map(({ name }) => [name, knownGroup(known[name]?.wan_group)]));
    const finder = new Finder({
      changed: () => {
        node.properties ??= {};
        node.properties[OPEN] = [...finder.open].join(" ");
        this.ask(node);
      },
      titleOf: (kind) =>
        /** @type {any} */ (window).LiteGraph?.registered_node_types?.[idHere(kind)]?.title ?? kind,
      widgetsOf: (kind) => Object.keys(widgetsOf(kind)).filter((name) => !usual.has(name)),
      reset: (name) => {
        const widget = widgets.find((one) => one.name === name);
        if (!widget) return;
        widget.value = usual.get(name);
        widget.callback?.(widget.value);
        this.ask(node);
      },
    });
    addWidget(node, finder.element, { least: () => heightOf(finder.element) + MARGINS });
    new ResizeObserver(() => this.frames.ask(() => settle(node))).observe(finder.element);
    watchWidgets(
      node,
      () => true,
      () => this.ask(node),
    );
    this.finders.set(node, finder);
    this.shown.set(node, () => {
      const settings = widgets.map((widget, at) => ({
        first: at < FIRST,
        group: groups.get(widget.name) ?? "",
        name: widget.name,
        value: widget.value,
        usual: usual.get(widget.name),
        text: [
          ...[widget.label, widget.tooltip ?? widget.options?.tooltip],
          groupTitle(groups.get(widget.name) ?? ""),
        ].join(" "),
        linked: Boolean(
          node.inputs?.some(
            (one) => one.widget?.name === widget.name && (one.link ?? null) !== null,
          ),
        ),
      }));
      const wanted = finder.show(settings);
      showOnly(node, widgets, wanted);
      settle(node);
    });
    this.ask(node);
  }

  /** Called after a workflow was loaded: opens the saved groups. @param {GraphNode} node */
  loaded(node) {
    const finder = this.finders.get(node);
    const open = node.properties?.[OPEN];
    if (finder && typeof open === "string") finder.open = new Set(open.split(" ").filter(Boolean));
    this.ask(node);
  }

  /** @param {GraphNode} node */
  ask(node) {
    const show = this.shown.get(node);
    if (show) this.frames.ask(show);
  }
}

/** Fits the node's height to its visible widgets. @param {GraphNode} node */
function settle(node) {
  const [width] = node.size ?? [0];
  const high = node.computeSize?.()[1];
  if (high && node.size?.[1] !== high) node.setSize?.([width, high]);
  node.setDirtyCanvas?.(true, true);
}

/** @param {HTMLElement} shown */
function heightOf(shown) {
  const parts = /** @type {HTMLElement[]} */ ([...shown.children]).map((part) => part.offsetHeight);
  return 16 + parts.filter((high) => high > 1).reduce((sum, high) => sum + high + 6, -6);
}
