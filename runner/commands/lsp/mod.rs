//! `greenroom lsp`: scenarios in an editor, using the Language Server Protocol over standard input and
//! output.
//!
//! It reports the same as `check`: an editor's text is loaded like a file, with the files next to it.

mod complete;
mod cursor;
mod define;
mod document;
mod fix;
mod hover;
mod names;
mod occurrences;
mod outline;
mod rename;
mod wire;

use super::{Exit, PathBounds};
use anyhow::{Context as _, bail};
use document::Document;
use lsp_server::{Connection, ErrorCode, Message, Notification, Request, Response};
use lsp_types::notification::{
    DidChangeTextDocument, DidCloseTextDocument, DidOpenTextDocument, DidSaveTextDocument, Notification as _,
    PublishDiagnostics,
};
use lsp_types::request::{
    CodeActionRequest, Completion, DocumentHighlightRequest, DocumentSymbolRequest, GotoDefinition,
    HoverRequest, PrepareRenameRequest, References, Rename, Request as _,
};
use lsp_types::{
    CodeActionKind, CodeActionOptions, CodeActionParams, CodeActionProviderCapability, CompletionOptions,
    CompletionParams, DidChangeTextDocumentParams, DidCloseTextDocumentParams, DidOpenTextDocumentParams,
    DocumentHighlightParams, DocumentSymbolParams, GotoDefinitionParams, HoverParams,
    HoverProviderCapability, OneOf, ReferenceParams, RenameOptions, RenameParams, ServerCapabilities,
    TextDocumentPositionParams, TextDocumentSyncCapability, TextDocumentSyncKind, TextDocumentSyncOptions,
    Uri,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Start a language server that checks and completes scenarios in an editor (docs/editors.md)
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom lsp --stdio\n\
An editor starts it and talks to it over standard input and output, in the Language Server Protocol.")]
pub(super) struct Args {
    /// Editors give it; there is no other way to talk
    #[arg(long, hide = true)]
    stdio: bool,
    #[command(flatten)]
    bounds: PathBounds,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let (connection, writer) = wire::stdio();
    let served = serve(&connection, args.bounds.root);
    drop(connection);
    // Everything that was passed to it is written.
    let _ = writer.join();
    served.map(|()| Exit::Pass)
}

fn capabilities() -> ServerCapabilities {
    let sync = TextDocumentSyncOptions {
        open_close: Some(true),
        change: Some(TextDocumentSyncKind::FULL),
        save: Some(true.into()),
        ..TextDocumentSyncOptions::default()
    };
    let triggers = [" ", ".", "[", ",", "|"].map(str::to_owned).to_vec();
    let fixes = CodeActionOptions {
        code_action_kinds: Some(vec![CodeActionKind::QUICKFIX]),
        ..CodeActionOptions::default()
    };
    ServerCapabilities {
        text_document_sync: Some(TextDocumentSyncCapability::Options(sync)),
        completion_provider: Some(CompletionOptions {
            trigger_characters: Some(triggers),
            ..CompletionOptions::default()
        }),
        hover_provider: Some(HoverProviderCapability::Simple(true)),
        definition_provider: Some(OneOf::Left(true)),
        references_provider: Some(OneOf::Left(true)),
        document_highlight_provider: Some(OneOf::Left(true)),
        document_symbol_provider: Some(OneOf::Left(true)),
        rename_provider: Some(OneOf::Right(RenameOptions {
            prepare_provider: Some(true),
            work_done_progress_options: Default::default(),
        })),
        code_action_provider: Some(CodeActionProviderCapability::Options(fixes)),
        ..ServerCapabilities::default()
    }
}

/// Communicates with an editor until it shuts the server down.
///
/// # Errors
/// The editor is gone, or violates the protocol.
fn serve(connection: &Connection, root: Option<PathBuf>) -> anyhow::Result<()> {
    let hello = connection.initialize_start();
    let (id, _) =
        hello.context("no editor has connected; this command is started by an editor: docs/editors.md")?;
    let server = json!({ "name": "greenroom", "version": env!("CARGO_PKG_VERSION") });
    let hello = json!({ "capabilities": capabilities(), "serverInfo": server });
    connection.initialize_finish(id, hello)?;
    let mut server =
        LanguageServer { connection, root, documents: BTreeMap::new(), changed: BTreeSet::new() };
    while let Ok(message) = connection.receiver.recv() {
        match message {
            Message::Request(request) => {
                if connection.handle_shutdown(&request)? {
                    return Ok(());
                }
                // An answer takes into account everything typed before the question.
                server.check_changed()?;
                server.answer(request)?;
            }
            Message::Notification(note) => server.note(note)?,
            Message::Response(_) => {}
        }
        // During fast typing, only the last change is checked.
        if connection.receiver.is_empty() {
            server.check_changed()?;
        }
    }
    bail!("the editor ended without a shutdown request")
}

/// The scenarios that an editor has open.
struct LanguageServer<'a> {
    connection: &'a Connection,
    root: Option<PathBuf>,
    documents: BTreeMap<String, Document>,
    /// Those whose text has changed since they were checked.
    changed: BTreeSet<String>,
}

impl LanguageServer<'_> {
    fn note(&mut self, note: Notification) -> anyhow::Result<()> {
        match note.method.as_str() {
            DidOpenTextDocument::METHOD => {
                let Ok(DidOpenTextDocumentParams { text_document: opened }) = read(note.params) else {
                    return Ok(());
                };
                self.put(&opened.uri, opened.text);
            }
            DidChangeTextDocument::METHOD => {
                let Ok(DidChangeTextDocumentParams { text_document, content_changes }) = read(note.params)
                else {
                    return Ok(());
                };
                if let Some(change) = content_changes.into_iter().last() {
                    self.put(&text_document.uri, change.text);
                }
            }
            // The saved file may be included by another.
            DidSaveTextDocument::METHOD => self.changed = self.documents.keys().cloned().collect(),
            DidCloseTextDocument::METHOD => {
                let Ok(DidCloseTextDocumentParams { text_document }) = read(note.params) else {
                    return Ok(());
                };
                let uri = text_document.uri;
                if let Some(closed) = self.documents.remove(uri.as_str()) {
                    closed.published.iter().try_for_each(|uri| self.publish(uri, &[]))?;
                }
                self.changed.remove(uri.as_str());
            }
            _ => {}
        }
        Ok(())
    }

    fn put(&mut self, uri: &Uri, text: String) {
        let Some(document) = self.documents.get_mut(uri.as_str()) else {
            let Some(document) = Document::new(uri, text) else { return };
            self.documents.insert(uri.as_str().to_owned(), document);
            self.changed.insert(uri.as_str().to_owned());
            return;
        };
        document.text = text;
        self.changed.insert(uri.as_str().to_owned());
    }

    fn check_changed(&mut self) -> anyhow::Result<()> {
        for uri in std::mem::take(&mut self.changed) {
            let Some(document) = self.documents.get_mut(&uri) else { continue };
            let found = document.check(self.root.as_deref());
            let diagnostics = std::mem::replace(&mut document.published, found.keys().cloned().collect());
            for uri in diagnostics.iter().filter(|uri| !found.contains_key(*uri)) {
                self.publish(uri, &[])?;
            }
            found.iter().try_for_each(|(uri, diagnostics)| self.publish(uri, diagnostics))?;
        }
        Ok(())
    }

    fn publish(&self, uri: &str, diagnostics: &[lsp_types::Diagnostic]) -> anyhow::Result<()> {
        let params = json!({ "uri": uri, "diagnostics": diagnostics });
        let note = Notification::new(PublishDiagnostics::METHOD.to_owned(), params);
        Ok(self.connection.sender.send(note.into())?)
    }

    fn answer(&self, request: Request) -> anyhow::Result<()> {
        let Request { id, method, params } = request;
        let answered = match method.as_str() {
            Completion::METHOD => read(params).map(|params: CompletionParams| {
                json!(self.at(&params.text_document_position, complete::complete).unwrap_or_default())
            }),
            HoverRequest::METHOD => read(params).map(|params: HoverParams| {
                json!(self.at(&params.text_document_position_params, hover::hover).flatten())
            }),
            GotoDefinition::METHOD => read(params).map(|params: GotoDefinitionParams| {
                json!(self.at(&params.text_document_position_params, define::definition).flatten())
            }),
            References::METHOD => read(params).map(|params: ReferenceParams| {
                let with_definition = params.context.include_declaration;
                let found = |document: &Document, at| define::references(document, at, with_definition);
                json!(self.at(&params.text_document_position, found).unwrap_or_default())
            }),
            DocumentHighlightRequest::METHOD => read(params).map(|params: DocumentHighlightParams| {
                let found = self.at(&params.text_document_position_params, define::highlights);
                json!(found.unwrap_or_default())
            }),
            DocumentSymbolRequest::METHOD => read(params).map(|params: DocumentSymbolParams| {
                let document = self.documents.get(params.text_document.uri.as_str());
                json!(document.map(outline::outline).unwrap_or_default())
            }),
            PrepareRenameRequest::METHOD => read(params).and_then(|at: TextDocumentPositionParams| {
                self.at(&at, rename::prepare).transpose().map(|found| json!(found)).map_err(refused)
            }),
            Rename::METHOD => read(params).and_then(|params: RenameParams| {
                let renamed = |document: &Document, at| {
                    rename::rename(document, self.root.as_deref(), at, &params.new_name)
                };
                let changes = self.at(&params.text_document_position, renamed).transpose();
                changes.map(|changes| json!(changes)).map_err(refused)
            }),
            CodeActionRequest::METHOD => read(params).map(|params: CodeActionParams| {
                let document = self.documents.get(params.text_document.uri.as_str());
                json!(document.map(|document| fix::fixes(document, params.range)).unwrap_or_default())
            }),
            _ => Err((ErrorCode::MethodNotFound, method)),
        };
        let response = match answered {
            Ok(result) => Response::new_ok(id, result),
            Err((code, diagnostics)) => Response::new_err(id, code as i32, diagnostics),
        };
        Ok(self.connection.sender.send(response.into())?)
    }

    /// The answer about a place in an open document.
    fn at<T>(&self, at: &TextDocumentPositionParams, said: impl Fn(&Document, usize) -> T) -> Option<T> {
        let document = self.documents.get(at.text_document.uri.as_str())?;
        Some(said(document, document.offset(at.position)))
    }
}

/// A request that can be read and not be done.
fn refused(reason: String) -> (ErrorCode, String) {
    (ErrorCode::RequestFailed, reason)
}

/// The parameters of a message, or the reason why they can't be read.
fn read<T: DeserializeOwned>(params: Value) -> Result<T, (ErrorCode, String)> {
    serde_json::from_value(params).map_err(|error| (ErrorCode::InvalidParams, error.to_string()))
}
