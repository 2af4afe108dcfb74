module holdfast.local/tools/pause

go 1.21
