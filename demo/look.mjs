// Opens the tab Training in Chromium and prints what its charts show, as JSON. What to open comes in as JSON, too.
import { readFileSync } from "node:fs";

const asked = JSON.parse(readFileSync(0, "utf8"));
const { chromium } = await import(asked.playwright);
const browser = await chromium.launch({ executablePath: asked.chromium, args: ["--no-sandbox"] });
try {
  const context = await browser.newContext({ viewport: { width: 1440, height: 1560 }, reducedMotion: "reduce" });
  await context.addCookies([{ name: "_token", value: asked.token, url: new URL(asked.link).origin }]);
  const page = await context.newPage();
  let trouble = null;
  page.on("pageerror", (error) => (trouble ??= String(error)));
  await page.goto(asked.link);
  const size = page.getByRole("img", { name: /^World size over time: now / });
  await size.waitFor({ timeout: 90_000 });
  const attempts = await page.locator(".el-lane-attempt").evaluateAll((all) => all.map((one) => one.title));
  const marks = [];
  for (const mark of await page.locator(".el-mark").all()) {
    await mark.focus(); // events that are close together share a mark: its tip has their words
    marks.push(...(await page.locator(".el-tip p").allInnerTexts()));
  }
  const [, low, high] = /between (\d+) and (\d+)/.exec((await size.getAttribute("aria-label")) ?? "") ?? [];
  await page.mouse.click(0, 0);
  await page.screenshot({ path: asked.picture, fullPage: true });
  console.log(JSON.stringify({ marks, attempts, sizes: low ? [Number(low), Number(high)] : null, trouble }));
} finally {
  await browser.close();
}
