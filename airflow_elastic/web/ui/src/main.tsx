// What Airflow loads: it imports this script, takes globalThis.AirflowPlugin or a global of the app's name, and renders it.
// Airflow has two apps of this one script. A browser runs a script once, so the second needs its name set, too.
import { Page } from "./page.tsx";
import { adoptStyles } from "./styles/adopt.ts";

adoptStyles();
for (const name of ["AirflowPlugin", "Training", "Elastic runs"]) Reflect.set(globalThis, name, Page);

export default Page;
