// Builds the pages into ../static: `node build.ts`, or `node build.ts FOLDER`.
//
// main.js: the pages themselves. React, the router and Chakra UI are what the page around has put into globalThis.
// host.js and index.html: a page around for where there is no Airflow. It brings these libraries.
import { cpSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { build, type BuildOptions, type Metafile, type Plugin } from "esbuild";

const here = import.meta.dirname;
const out = process.argv[2] ?? join(here, "..", "static");

// What Airflow's UI has under these names; host.ts sets the same.
const globals: Record<string, string> = {
  react: "React",
  "react/jsx-runtime": "ReactJSXRuntime",
  "react-dom": "ReactDOM",
  "react-router-dom": "ReactRouterDOM",
  "@chakra-ui/react": "ChakraUI",
};

const fromGlobals: Plugin = {
  name: "from-globals",
  setup(plugin) {
    const names = Object.keys(globals).map((name) => name.replaceAll("/", "\\/"));
    plugin.onResolve({ filter: new RegExp(`^(${names.join("|")})$`) }, ({ path }) => ({ path, namespace: "global" }));
    plugin.onLoad({ filter: /.*/, namespace: "global" }, ({ path }) => ({
      contents: `module.exports = globalThis.${globals[path]}`,
      loader: "js",
    }));
  },
};

const shared: BuildOptions & { metafile: true } = {
  bundle: true,
  format: "esm",
  target: ["chrome111", "firefox115", "safari16.4"],
  minify: true,
  metafile: true,
  legalComments: "none", // third-party-licenses.txt has them
  define: { "process.env.NODE_ENV": '"production"' },
  loader: { ".css": "text" },
  absWorkingDir: here,
  logLevel: "warning",
};

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
const results = await Promise.all([
  build({ ...shared, entryPoints: ["src/main.tsx"], outfile: join(out, "main.js"), plugins: [fromGlobals] }),
  build({ ...shared, entryPoints: ["src/host/host.tsx"], outfile: join(out, "host.js") }),
]);
cpSync(join(here, "public"), out, { recursive: true });
writeFileSync(join(out, "third-party-licenses.txt"), licenses(results.map((result) => result.metafile)));

/** The name, version and licence text of each package that is in a bundle. */
function licenses(metafiles: Metafile[]): string {
  const folders = new Set<string>();
  for (const path of metafiles.flatMap((metafile) => Object.keys(metafile.inputs))) {
    const found = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(path);
    if (found?.[1]) folders.add(found[1]);
  }
  return [...folders].sort().map(licence).join(`\n${"-".repeat(100)}\n\n`);
}

function licence(folder: string): string {
  const path = join(here, folder);
  const about = JSON.parse(readFileSync(join(path, "package.json"), "utf8"));
  const file = readdirSync(path).find((name) => /^licen[cs]e/i.test(name));
  const text = file ? readFileSync(join(path, file), "utf8").trim() : `Licence: ${about.license}`;
  return `${about.name ?? dirname(folder)} ${about.version}\n\n${text}\n`;
}
