// @ts-check
/** The theme of our charts: the page's own colours, or those the user chose in the settings. */

import { chartTheme } from "./settings.mjs";

/** The style sheet knows the themes, and `watchTheme` sees the change. @param {unknown} value of the setting */
export function showChartTheme(value) {
  const theme = chartTheme(value);
  if (theme) document.documentElement.dataset.wanChart = theme;
  else delete document.documentElement.dataset.wanChart;
}

/** Colours are read from the page when something is drawn. @param {() => void} changed */
export function watchTheme(changed) {
  const watch = {
    attributes: true,
    attributeFilter: ["class", "style", "data-theme", "data-wan-chart"],
  };
  for (const place of [document.documentElement, document.body]) {
    new MutationObserver(changed).observe(place, watch);
  }
}
