// The page around, where there is no Airflow. It brings what Airflow's UI puts into globalThis, then loads main.js.
import { ChakraProvider } from "@chakra-ui/react";
import * as React from "react";
import * as ReactJSXRuntime from "react/jsx-runtime";
import * as ReactDOM from "react-dom";
import { createRoot } from "react-dom/client";
import * as ReactRouterDOM from "react-router-dom";
import * as ChakraUI from "../chakra.ts";
import { showMode } from "./colour_mode.ts";
import { HostHeader } from "./host_header.tsx";
import { system } from "./system.ts";

Object.assign(globalThis, { React, ReactDOM, ReactJSXRuntime, ReactRouterDOM, ChakraUI, ChakraUISystem: system });
showMode();

// Not a plain import: the build would put the pages into this bundle, and they need the globals first.
const pages = new URL("./main.js", import.meta.url).href;
const { default: Page } = (await import(pages)) as { default: React.ComponentType };

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <ChakraProvider value={system}>
      <ReactRouterDOM.BrowserRouter>
        <HostHeader />
        <Page />
      </ReactRouterDOM.BrowserRouter>
    </ChakraProvider>,
  );
}
