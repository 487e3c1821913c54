// Pictures of pages with made-up runs: `node tests/shoot.ts FOLDER NAME=QUERY@WIDTHxHEIGHT[@dark] …`.
import { join } from "node:path";
import { chromium } from "playwright-core";
import { serve } from "./fixtures/server.ts";

const [folder = ".", ...wanted] = process.argv.slice(2);
// SITE: the address of another server, with its token.
const site = process.env.SITE ? new URL(process.env.SITE) : null;
const fixture = await serve();
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
for (const one of wanted) {
  const [name = "page", rest = ""] = one.split(/=(.*)/s);
  const [query = "", size = "1280x900", mode = "light"] = rest.split("@");
  const [width, height] = size.split("x").map(Number);
  const context = await browser.newContext({
    viewport: { width: width ?? 1280, height: height ?? 900 }, colorScheme: mode as "light" | "dark", timezoneId: "Europe/Berlin",
  });
  const page = await context.newPage();
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) console.log(name, message.text()); });
  page.on("response", (response) => { if (response.status() >= 400) console.log(name, response.status(), response.url()); });
  page.on("pageerror", (error) => console.log(name, error));
  if (site) await page.goto(site.href);
  await page.goto(`${site?.origin ?? fixture.url}/${query}`);
  await page.waitForTimeout(1200);
  await page.screenshot({ path: join(folder, `${name}.png`), fullPage: size.endsWith("x0") });
  await context.close();
}
await browser.close();
await fixture.close();
