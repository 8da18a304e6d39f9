// Starts `greenroom lsp` for YAML files. The server leaves alone what has no `phases`.
const { workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

exports.activate = async () => {
  const command = workspace.getConfiguration("greenroom").get("path");
  const selector = [{ scheme: "file", language: "yaml" }];
  client = new LanguageClient("greenroom", "Greenroom", { command, args: ["lsp"] }, { documentSelector: selector });
  await client.start();
};

exports.deactivate = () => client?.stop();
