// Puts our style sheets into the document, once, however often this script is loaded.
import uplot from "uplot/dist/uPlot.min.css";
import base from "./base.css";
import charts from "./charts.css";
import controls from "./controls.css";
import header from "./header.css";
import logs from "./logs.css";
import tables from "./tables.css";

const MARK = "airflowElasticStyles";

export function adoptStyles(): void {
  if (Reflect.has(document, MARK)) return;
  Reflect.set(document, MARK, true);
  const sheet = new CSSStyleSheet();
  sheet.replaceSync([uplot, base, controls, header, charts, tables, logs].join("\n"));
  document.adoptedStyleSheets.push(sheet);
}
